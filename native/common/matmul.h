/* Products of matrices that fit into the cache: C = A B, C = A B + bias or C += A B.
 *
 * Layout. B has `depth` rows and is stored in panels of BLOCK columns: row r of panel n begins at
 * b.data + n * b.panel_stride + r * b.row_stride, so that one step of the inner loop loads two
 * adjacent vectors. A is read one number at a time and broadcast: a.data[i * a.row_stride + j], or
 * a.data[j * a.row_stride + i] if transposed.
 *
 * Blocking. A tile of TILE_ROWS x BLOCK numbers of C stays in registers over the whole depth; each
 * step is TILE_ROWS * 2 fused multiply-adds on two vectors of B and TILE_ROWS numbers of A. All
 * loops of a tile are unrolled, so `rows`, `vectors` and `transposed` must be constants.
 *
 * Bands. Under a causal mask A is triangular. A has `lower` and `upper` bandwidth: A[i][j] is 0
 * outside i - lower <= j <= i + upper, and tiles skip that part. A tile works on the union of its
 * rows' bands, so a few numbers outside the band are read and must be stored as 0.
 */
#ifndef ADDNORM_MATMUL_H
#define ADDNORM_MATMUL_H

#include "common/vectors.h"

/* Rows of a tile of two vectors: as many accumulators as the register file holds. */
#if defined(__AVX512F__) || defined(__aarch64__)
#define TILE_ROWS 12
#else
#define TILE_ROWS 6
#endif
#define MAX_TILE_ROWS 12 /* rows of a tile of one vector: fewer would leave the FMA units waiting */
#define CACHE_LINE_FLOATS 16
#define FULL_BAND ((int64_t)1 << 40) /* bandwidth of a matrix without zeros */

struct lhs { /* A */
    const float *data;
    int64_t row_stride;
    int transposed;
    int64_t prefetch_distance; /* from each number to the one needed a tile later; 0: no prefetch */
};

struct panels { /* B */
    const float *data;
    int64_t row_stride, panel_stride;
};

struct output { /* C */
    float *data;
    int64_t row_stride;
    int accumulate;
    const float *row_factors; /* multiply each row at the end; NULL: none */
    const float *bias;        /* added to each column; NULL: none */
};

/* Compute `rows` rows and `vectors` vectors of C. */
INLINE void compute_tile(const int rows, const int vectors, const int transposed, const float *a,
                         int64_t a_stride, const float *b, int64_t b_stride, struct output c,
                         int64_t depth, int64_t prefetch_distance) {
    vfloat sum[MAX_TILE_ROWS][2];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int n = 0; n < vectors; n++)
            sum[r][n] = c.bias ? vload(c.bias + n * LANES) : (vfloat){0};
    for (int64_t d = 0; d < depth;) {
        const int64_t end = d + CACHE_LINE_FLOATS < depth ? d + CACHE_LINE_FLOATS : depth;
        if (prefetch_distance) /* one line per row at a time: more would stall the product */
            for (int r = 0; r < rows; r++)
                __builtin_prefetch(a + r * a_stride + d + prefetch_distance);
        for (; d < end; d++) {
            vfloat x[2];
#pragma GCC unroll 2
            for (int n = 0; n < vectors; n++) x[n] = vload(b + d * b_stride + n * LANES);
#pragma GCC unroll 12
            for (int r = 0; r < rows; r++) {
                float y = transposed ? a[d * a_stride + r] : a[r * a_stride + d];
#pragma GCC unroll 2
                for (int n = 0; n < vectors; n++) sum[r][n] += y * x[n];
            }
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int n = 0; n < vectors; n++) {
            const int64_t offset = r * c.row_stride + n * LANES;
            vfloat v = sum[r][n];
            if (c.accumulate) v += vload(c.data + offset); /* last: small sums round less */
            if (c.row_factors) v = v * c.row_factors[r];
            vstore(c.data + offset, v);
        }
}

/* Call compute_tile with `rows` as a constant. */
INLINE void dispatch_tile(int rows, const int vectors, const int transposed, const float *a,
                          int64_t a_stride, const float *b, int64_t b_stride, struct output c,
                          int64_t depth, int64_t prefetch_distance) {
#define CASE(n)                                                                      \
    case n:                                                                          \
        if (vectors == 1 || n <= TILE_ROWS)                                          \
            compute_tile(n, vectors, transposed, a, a_stride, b, b_stride, c, depth, \
                         prefetch_distance);                                         \
        break;
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
    }
#undef CASE
}

/* Multiply A with one panel, of which the first `vectors` vectors are used. */
INLINE void multiply_panel(const int vectors, const int transposed, int64_t rows, int64_t depth,
                           struct lhs a, const float *b, int64_t b_stride, struct output c,
                           int64_t lower, int64_t upper) {
    const int64_t max_rows = vectors == 1 ? MAX_TILE_ROWS : TILE_ROWS;
    int64_t tiles = (rows + max_rows - 1) / max_rows;
    for (int64_t i = 0; i < rows; tiles--) {
        struct output tile = c;
        /* Even heights: a last tile of one row would take as long as one of four. */
        int64_t height = (rows - i + tiles - 1) / tiles;
        int64_t first = i > lower ? i - lower : 0, last = i + height + upper;
        if (last > depth) last = depth;
        if (first > last) first = last;
        tile.data += i * c.row_stride;
        if (c.row_factors) tile.row_factors += i;
        dispatch_tile((int)height, vectors, transposed,
                      a.data + (transposed ? i + first * a.row_stride : i * a.row_stride + first),
                      a.row_stride, b + first * b_stride, b_stride, tile, last - first,
                      a.prefetch_distance);
        i += height;
    }
}

/* Multiply A (rows, depth) with B (depth, columns); `columns` is a multiple of LANES. */
static __attribute__((noinline, unused)) void matmul(int64_t rows, int64_t columns, int64_t depth,
                                                     struct lhs a, struct panels b, struct output c,
                                                     int64_t lower, int64_t upper) {
    for (int64_t n = 0; n < columns; n += BLOCK) {
        if (n + BLOCK <= columns && a.transposed)
            multiply_panel(2, 1, rows, depth, a, b.data, b.row_stride, c, lower, upper);
        else if (n + BLOCK <= columns)
            multiply_panel(2, 0, rows, depth, a, b.data, b.row_stride, c, lower, upper);
        else if (a.transposed)
            multiply_panel(1, 1, rows, depth, a, b.data, b.row_stride, c, lower, upper);
        else
            multiply_panel(1, 0, rows, depth, a, b.data, b.row_stride, c, lower, upper);
        b.data += b.panel_stride;
        c.data += BLOCK;
        if (c.bias) c.bias += BLOCK;
    }
}

#endif
