/* Linear map at one instruction-set level: compiled once per level, as add_norm/kernels.c is.
 *
 * BLAS libraries pack all weights into panels in every call. With few rows, as in decoding, that
 * takes as long as the product itself. So two algorithms:
 *
 *   small batch   out^T = weight x^T. The rows of x are transposed into panels once; the weights
 *                 are read in place, once per group of rows that fits into the cache.
 *   large batch   out = x weight^T. Each thread transposes the weights of a block of columns and
 *                 multiplies all of its rows with them.
 */
#include "linear/linear.h"
#include "common/matmul.h"
#include "common/transpose_tile.h"

#define X f32
#include "common/pack_panels.h"
#undef NAME

enum { GROUP_FLOATS = 1 << 16 }; /* size of a group of rows of x, but two panels at least */

static void transpose_rows(const struct addnorm_linear *p, float *workspace) {
    transpose_f32(p->x, p->depth, p->rows, p->depth, 1, workspace);
}

/* Transpose a tile of out^T, (columns, BLOCK), into `rows` rows of out, and add the bias. */
static void store_transposed(const float *tile, int64_t columns, int64_t rows, const float *bias,
                             float *out, int64_t row_stride) {
    for (int64_t c = 0; c < columns; c += 4)
        for (int64_t r = 0; r < rows; r += 4) {
            const int64_t width = min(columns - c, 4), height = min(rows - r, 4);
            float4 v[4], shift = {0};
            if (bias) memcpy(&shift, bias + c, sizeof(float) * (size_t)width);
            for (int64_t n = 0; n < 4; n++) v[n] = load4_f32(tile + (c + n) * BLOCK + r);
            transpose4(v);
            for (int64_t n = 0; n < height; n++) {
                float *to = out + (r + n) * row_stride + c;
                v[n] += shift;
                if (width == 4)
                    memcpy(to, &v[n], sizeof v[n]);
                else
                    memcpy(to, &v[n], sizeof(float) * (size_t)width);
            }
        }
}

static void small_batch(const struct addnorm_linear *p, const float *x_panels, int64_t first,
                        int64_t last) {
    const int64_t depth = p->depth;
    /* Rows of weights a multiple of 4096 bytes apart would evict each other from the first-level
     * cache, so take fewer of them at a time. */
    const int64_t strip = depth % 1024 ? MAX_TILE_ROWS : TILE_ROWS;
    int64_t group = depth ? GROUP_FLOATS / depth / BLOCK * BLOCK : p->rows;
    float tile[MAX_TILE_ROWS * BLOCK];
    if (group < 2 * BLOCK) group = 2 * BLOCK;
    for (int64_t from = 0; from < p->rows; from += group) {
        const int64_t to = min(from + group, p->rows);
        for (int64_t n = first; n < last; n += strip) {
            const int64_t columns = min(last - n, strip);
            struct lhs weight = {.data = p->weight + n * depth, .row_stride = depth};
            const struct output c = {.data = tile, .row_stride = BLOCK};
            for (int64_t row = from; row < to; row += BLOCK) {
                const int64_t rows = min(to - row, BLOCK);
                const float *panel = x_panels + row * depth;
                /* Prefetch the weights of the next strip while they are not in use. */
                weight.prefetch_distance =
                    row == from && n + 2 * strip <= last ? strip * depth : 0;
                if (rows <= LANES)
                    multiply_panel(1, 0, columns, depth, weight, panel, BLOCK, c, FULL_BAND,
                                   FULL_BAND);
                else
                    multiply_panel(2, 0, columns, depth, weight, panel, BLOCK, c, FULL_BAND,
                                   FULL_BAND);
                store_transposed(tile, columns, rows, p->bias ? p->bias + n : 0,
                                 p->out + row * p->columns + n, p->columns);
            }
        }
    }
}

static void large_batch(const struct addnorm_linear *p, float *workspace, int64_t first,
                        int64_t last) {
    const int64_t depth = p->depth, all = p->columns;
    for (int64_t n = 0; n < all; n += ADDNORM_LINEAR_COLUMN_BLOCK) {
        const int64_t columns = min(all - n, ADDNORM_LINEAR_COLUMN_BLOCK);
        const struct lhs x = {.data = p->x + first * depth, .row_stride = depth};
        const struct panels weight =
            transpose_f32(p->weight + n * depth, depth, columns, depth, 1, workspace);
        const struct output c = {
            .data = p->out + first * all + n,
            .row_stride = all,
            .bias = p->bias ? p->bias + n : 0,
        };
        matmul(last - first, columns, depth, x, weight, c, FULL_BAND, FULL_BAND);
    }
}

#define NAME_(level) addnorm_linear_##level
#define NAME(level) NAME_(level)

const struct addnorm_linear_level NAME(LEVEL) = {
    .transpose_rows = transpose_rows,
    .small_batch = small_batch,
    .large_batch = large_batch,
};
