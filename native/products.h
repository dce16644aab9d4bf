/* Products of small matrices that stand in the cache: C = A B, C = A B + bias, or C += A B.
 *
 * B has `depth` rows, in panels of BLOCK columns: row r of panel n begins at b.at + n * b.panel +
 * r * b.row. A is read number by number: a.at[i * a.row + j], or a.at[j * a.row + i] if turned.
 */
#ifndef ADDNORM_PRODUCTS_H
#define ADDNORM_PRODUCTS_H

#include "vectors.h"

/* Rows of C that stay in registers, times two vectors: as many as there are registers for. */
#if defined(__AVX512F__) || defined(__aarch64__)
#define TALL 12
#else
#define TALL 6
#endif
#define TALLEST 12 /* rows where it is one vector: fewer sums would wait for each other */
#define LINE 16    /* numbers that come into the cache together */

struct thin { /* A */
    const float *at;
    int64_t row;
    int turned;
    int64_t ahead; /* where, from each number, that stands which comes next in time; 0: nowhere */
};

struct panels { /* B */
    const float *at;
    int64_t row, panel;
};

struct square { /* C */
    float *at;
    int64_t row;
    int add;
    const float *factors; /* of each row; NULL: none */
    const float *bias;    /* of each column; NULL: none */
};

INLINE floats near(const float *from) {
    floats v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE void put(float *to, floats v) { memcpy(to, &v, sizeof v); }

/* `tall` rows and `vectors` vectors of C; all but the pointers is known to the compiler. */
INLINE void tile(const int tall, const int vectors, const int turned, const float *a,
                 int64_t a_row, const float *b, int64_t b_row, struct square c, int64_t depth,
                 int64_t ahead) {
    floats sum[TALLEST][2];
#pragma GCC unroll 12
    for (int r = 0; r < tall; r++)
#pragma GCC unroll 2
        for (int n = 0; n < vectors; n++)
            sum[r][n] = c.bias ? near(c.bias + n * WIDE) : (floats){0};
    for (int64_t d = 0; d < depth;) {
        const int64_t end = d + LINE < depth ? d + LINE : depth;
        if (ahead) /* a line of each row at a time: more at once would hold up the product */
            for (int r = 0; r < tall; r++) __builtin_prefetch(a + r * a_row + d + ahead);
        for (; d < end; d++) {
            floats x[2];
#pragma GCC unroll 2
            for (int n = 0; n < vectors; n++) x[n] = near(b + d * b_row + n * WIDE);
#pragma GCC unroll 12
            for (int r = 0; r < tall; r++) {
                float y = turned ? a[d * a_row + r] : a[r * a_row + d];
#pragma GCC unroll 2
                for (int n = 0; n < vectors; n++) sum[r][n] += y * x[n];
            }
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < tall; r++)
#pragma GCC unroll 2
        for (int n = 0; n < vectors; n++) {
            const int64_t place = r * c.row + n * WIDE;
            floats v = sum[r][n];
            if (c.add) v += near(c.at + place); /* at the end: the smaller sums are, the more exact */
            if (c.factors) v = v * c.factors[r];
            put(c.at + place, v);
        }
}

INLINE void any_tile(int tall, const int vectors, const int turned, const float *a, int64_t a_row,
                     const float *b, int64_t b_row, struct square c, int64_t depth, int64_t ahead) {
#define CASE(n)                                                                                   \
    case n:                                                                                       \
        if (vectors == 1 || n <= TALL)                                                            \
            tile(n, vectors, turned, a, a_row, b, b_row, c, depth, ahead);                        \
        break;
    switch (tall) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
    }
#undef CASE
}

/* `rows` rows and `columns` columns, a multiple of WIDE. Where A is a triangle, row i of it is read
 * from i - late, if that is above 0, to i + early, if that is below `depth`; a few numbers more are
 * read and must be 0. NEVER: all of it. */
#define NEVER ((int64_t)1 << 40)

INLINE void panel_product(const int vectors, const int turned, int64_t rows, int64_t depth,
                          struct thin a, const float *b, int64_t b_row, struct square c,
                          int64_t late, int64_t early) {
    const int64_t most = vectors == 1 ? TALLEST : TALL;
    int64_t strips = (rows + most - 1) / most;
    for (int64_t i = 0; i < rows; strips--) {
        struct square here = c;
        int64_t tall = (rows - i + strips - 1) / strips; /* evenly: a lone row is as slow as four */
        int64_t first = i > late ? i - late : 0, last = i + tall + early;
        if (last > depth) last = depth;
        if (first > last) first = last;
        here.at += i * c.row;
        if (c.factors) here.factors += i;
        any_tile((int)tall, vectors, turned, a.at + (turned ? i + first * a.row : i * a.row + first),
                 a.row, b + first * b_row, b_row, here, last - first, a.ahead);
        i += tall;
    }
}

static __attribute__((noinline, unused)) void product(int64_t rows, int64_t columns, int64_t depth,
                                                      struct thin a, struct panels b, struct square c,
                                                      int64_t late, int64_t early) {
    for (int64_t n = 0; n < columns; n += BLOCK) {
        if (n + BLOCK <= columns && a.turned)
            panel_product(2, 1, rows, depth, a, b.at, b.row, c, late, early);
        else if (n + BLOCK <= columns)
            panel_product(2, 0, rows, depth, a, b.at, b.row, c, late, early);
        else if (a.turned)
            panel_product(1, 1, rows, depth, a, b.at, b.row, c, late, early);
        else
            panel_product(1, 0, rows, depth, a, b.at, b.row, c, late, early);
        b.at += b.panel;
        c.at += BLOCK;
        if (c.bias) c.bias += BLOCK;
    }
}

#endif
