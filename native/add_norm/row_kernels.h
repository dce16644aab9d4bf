/* Row kernels for one pair of dtypes: included by kernels.c with X, the dtype of the stream, and
 * F, the dtype of the branch, defined.
 *
 * A row of s is produced in one pass over x and f and is then read again from the first-level
 * cache for the statistics and for y. Memory is therefore read once per tensor, where separate
 * operations would read and write a whole matrix each. Reductions run over the features of one row
 * in vectors of float32; whole rows are independent.
 *
 * Each formula is a macro over one block of features. BLOCKS applies it to all whole blocks of a
 * row and to the short block at its end. `rms` and `drop` are constants in every caller: the
 * compiler builds four versions of a kernel without branches in the loops.
 */

#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)
#define LOAD(T) PASTE(load, T)
#define STORE(T) PASTE(store, T)
#define ROUND(T) PASTE(round, T)
#define NAME(name) PASTE(PASTE(name, X), F)

/* Apply `call` to each block of features from `first` to `end`; the last block may be short. */
#define BLOCKS(first, end, call)                                                                  \
    do {                                                                                          \
        int64_t i = first;                                                                        \
        for (; i + BLOCK <= (end); i += BLOCK) call(i, BLOCK);                                    \
        if (i < (end)) {                                                                          \
            const int64_t rest = (end) - i;                                                       \
            /* Without this hint the compiler would add a second copy of the whole-block code. */ \
            if (rest >= BLOCK) __builtin_unreachable();                                           \
            call(i, rest);                                                                        \
        }                                                                                         \
    } while (0)

INLINE block NAME(load_scales)(const struct addnorm_rows *p, int64_t i, int64_t valid) {
    if (p->scales) return load_f32(p->scales + i, valid);
    return (block){{vset(p->scale), vset(p->scale)}};
}

INLINE block NAME(load_gains)(const struct addnorm_rows *p, int64_t i, int64_t valid) {
    if (p->weight) return load_f32(p->weight + i, valid);
    return (block){{vset(1), vset(1)}};
}

/* Draw the keep masks of features `first` to `end` of a row. Drawing and using them in one loop
 * would need more registers than there are, so the masks of a chunk are stored first. Meanwhile
 * the memory system fetches the part of x and f that the next loop reads, or writes. */
INLINE void NAME(draw_keep_masks)(const struct addnorm_rows *p, int64_t row, int64_t first,
                                  int64_t end, vdraws *keep_mask, const X *x, const F *f,
                                  const int for_write) {
    draw_stream stream = open_draw_stream(p, row, first);
    for (int64_t i = first; i < end; i += BLOCK) {
        if (for_write) { /* the builtin requires a constant */
            if (x) __builtin_prefetch(x + i, 1);
            if (f) __builtin_prefetch(f + i, 1);
        } else {
            if (x) __builtin_prefetch(x + i, 0);
            if (f) __builtin_prefetch(f + i, 0);
        }
        *keep_mask++ = next_keep_mask(&stream);
    }
}

/* Write s of a row; return its sum (LayerNorm) or the sum of its squares (RMSNorm). */
INLINE float NAME(add_branch)(const struct addnorm_rows *p, int64_t row, X *s, const int rms,
                              const int drop) {
    const X *x = (const X *)p->x + row * p->dim;
    const F *f = (const F *)p->f + row * p->dim;
    const vfloat keep_factor = vset(p->keep_factor);
    vdraws keep_mask[DRAW_CHUNK / BLOCK];
    block total = {{{0}, {0}}};
    for (int64_t first = 0, end; first < p->dim; first = end) {
        end = drop && first + DRAW_CHUNK < p->dim ? first + DRAW_CHUNK : p->dim;
        if (drop) NAME(draw_keep_masks)(p, row, first, end, keep_mask, x, f, 0);
#define ADD(i, valid)                                                                  \
    do {                                                                               \
        block a = NAME(load_scales)(p, i, valid), k;                                   \
        block v = LOAD(X)(x + (i), valid), g = LOAD(F)(f + (i), valid);                \
        if (drop) k = dropout_factors(keep_mask + ((i) - first) / BLOCK, keep_factor); \
        for (int j = 0; j < 2; j++)                                                    \
            v.v[j] = a.v[j] * v.v[j] + (drop ? k.v[j] * g.v[j] : g.v[j]);              \
        v = ROUND(X)(v);                                                               \
        STORE(X)(s + (i), v, valid);                                                   \
        for (int j = 0; j < 2; j++) total.v[j] += rms ? v.v[j] * v.v[j] : v.v[j];      \
    } while (0)
        BLOCKS(first, end, ADD);
#undef ADD
    }
    return vsum(total.v[0] + total.v[1]);
}

/* Return the sum of (s - mean)^2 over a row. */
INLINE float NAME(sum_squared_deviations)(const X *s, int64_t dim, float mean) {
    block total = {{{0}, {0}}};
#define ADD_SQUARES(i, valid)                                           \
    do {                                                                \
        block v = LOAD(X)(s + (i), valid);                              \
        for (int j = 0; j < 2; j++) v.v[j] -= mean;                     \
        if ((valid) < BLOCK) v = mask_tail(v, valid);                   \
        for (int j = 0; j < 2; j++) total.v[j] += v.v[j] * v.v[j];      \
    } while (0)
    BLOCKS(0, dim, ADD_SQUARES);
#undef ADD_SQUARES
    return vsum(total.v[0] + total.v[1]);
}

/* Write y of a row. */
INLINE void NAME(normalize)(const struct addnorm_rows *p, const X *s, X *y, float mean, float rstd,
                            const int rms) {
#define NORMALIZE(i, valid)                                                      \
    do {                                                                         \
        block v = LOAD(X)(s + (i), valid), w = NAME(load_gains)(p, i, valid), b; \
        if (p->bias) b = load_f32(p->bias + (i), valid);                         \
        for (int j = 0; j < 2; j++) {                                            \
            v.v[j] = (rms ? v.v[j] : v.v[j] - mean) * rstd * w.v[j];             \
            if (p->bias) v.v[j] += b.v[j];                                       \
        }                                                                        \
        STORE(X)(y + (i), ROUND(X)(v), valid);                                   \
    } while (0)
    BLOCKS(0, p->dim, NORMALIZE);
#undef NORMALIZE
}

/* Forward of `count` adjacent rows, pass by pass. A pass ends in a horizontal sum with a long
 * latency; with several rows the next row's pass runs meanwhile. That pays only for narrow rows:
 * the hardware prefetcher serves one wide row at a time best. */
INLINE void NAME(forward_rows)(const struct addnorm_rows *p, int64_t row, const int count,
                               const int rms, const int drop) {
    const int64_t dim = p->dim;
    X *y = (X *)p->y + row * dim;
    X *s = p->s ? (X *)p->s + row * dim : y; /* without s, y holds it until the end */
    float total[ROWS_AT_ONCE], mean[ROWS_AT_ONCE], rstd[ROWS_AT_ONCE];
    for (int r = 0; r < count; r++) total[r] = NAME(add_branch)(p, row + r, s + r * dim, rms, drop);
    for (int r = 0; r < count && !rms; r++) {
        mean[r] = total[r] / (float)dim;
        if (p->mean) p->mean[row + r] = mean[r];
        total[r] = NAME(sum_squared_deviations)(s + r * dim, dim, mean[r]);
    }
    for (int r = 0; r < count; r++) {
        rstd[r] = 1 / __builtin_sqrtf(total[r] / (float)dim + p->eps);
        if (p->rstd) p->rstd[row + r] = rstd[r];
    }
    for (int r = 0; r < count; r++)
        NAME(normalize)(p, s + r * dim, y + r * dim, rms ? 0 : mean[r], rstd[r], rms);
}

/* Backward of a row. With h = (s - mean) * rstd and g = dy * weight:
 *
 *   dweight += dy * h,  dbias += dy
 *   t = rstd * (g - mean(g) - h * mean(g * h)) + ds        without mean(g) for RMSNorm
 *   dx = a * t,  df = k * t,  dscales += x * t
 *
 * The first loop makes the sums over the row, the second the gradients of the inputs. */
INLINE void NAME(backward_row)(const struct addnorm_rows *p, int64_t row, int64_t row_block,
                               const int rms, const int drop) {
    const int64_t dim = p->dim;
    const X *s = (const X *)p->s + row * dim, *dy = (const X *)p->dy + row * dim;
    const X *ds = p->ds ? (const X *)p->ds + row * dim : 0;
    const X *x = p->dscales ? (const X *)p->x + row * dim : 0;
    X *dx = p->dx ? (X *)p->dx + row * dim : 0;
    F *df = p->df ? (F *)p->df + row * dim : 0;
    float *dw = p->partial ? p->partial + 3 * row_block * dim : 0;
    float *db = dw ? dw + dim : 0, *da = dw ? db + dim : 0;
    const float mean = rms ? 0 : p->mean[row], rstd = p->rstd[row];
    const vfloat keep_factor = vset(p->keep_factor);
    vdraws keep_mask[DRAW_CHUNK / BLOCK];
    vfloat g_sum = {0}, gh_sum = {0};

#define ROW_SUMS(i, valid)                                               \
    do {                                                                 \
        block w = NAME(load_gains)(p, i, valid), sw, sb;                 \
        block h = LOAD(X)(s + (i), valid), g = LOAD(X)(dy + (i), valid); \
        if (p->dweight) sw = load_f32(dw + (i), valid);                  \
        if (p->dbias) sb = load_f32(db + (i), valid);                    \
        for (int j = 0; j < 2; j++) {                                    \
            h.v[j] = (rms ? h.v[j] : h.v[j] - mean) * rstd;              \
            if (p->dweight) sw.v[j] += g.v[j] * h.v[j];                  \
            if (p->dbias) sb.v[j] += g.v[j];                             \
            g.v[j] *= w.v[j];                                            \
            if (!rms) g_sum += g.v[j];                                   \
            gh_sum += g.v[j] * h.v[j];                                   \
        }                                                                \
        if (p->dweight) store_f32(dw + (i), sw, valid);                  \
        if (p->dbias) store_f32(db + (i), sb, valid);                    \
    } while (0)
    BLOCKS(0, dim, ROW_SUMS);
#undef ROW_SUMS

    const float mean_term = rms ? 0 : vsum(g_sum) / (float)dim * rstd;
    const float variance_term = vsum(gh_sum) / (float)dim * rstd * rstd;
    for (int64_t first = 0, end; first < dim; first = end) {
        end = drop && first + DRAW_CHUNK < dim ? first + DRAW_CHUNK : dim;
        if (drop) NAME(draw_keep_masks)(p, row, first, end, keep_mask, dx, df, 1);
#define INPUT_GRADS(i, valid)                                                        \
    do {                                                                             \
        block t = LOAD(X)(dy + (i), valid), v = LOAD(X)(s + (i), valid);             \
        block w = NAME(load_gains)(p, i, valid), u, k;                               \
        if (ds) u = LOAD(X)(ds + (i), valid);                                        \
        for (int j = 0; j < 2; j++) {                                                \
            v.v[j] = rms ? v.v[j] * variance_term                                    \
                         : (v.v[j] - mean) * variance_term + mean_term;              \
            t.v[j] = t.v[j] * (w.v[j] * rstd) - v.v[j];                              \
            if (ds) t.v[j] += u.v[j];                                                \
        }                                                                            \
        if (df) {                                                                    \
            block to = t;                                                            \
            if (drop) {                                                              \
                k = dropout_factors(keep_mask + ((i) - first) / BLOCK, keep_factor); \
                for (int j = 0; j < 2; j++) to.v[j] *= k.v[j];                       \
            }                                                                        \
            STORE(F)(df + (i), ROUND(F)(to), valid);                                 \
        }                                                                            \
        if (x) {                                                                     \
            block sa = load_f32(da + (i), valid), z = LOAD(X)(x + (i), valid);       \
            for (int j = 0; j < 2; j++) sa.v[j] += z.v[j] * t.v[j];                  \
            store_f32(da + (i), sa, valid);                                          \
        }                                                                            \
        if (dx) {                                                                    \
            block a = NAME(load_scales)(p, i, valid);                                \
            for (int j = 0; j < 2; j++) t.v[j] *= a.v[j];                            \
            STORE(X)(dx + (i), ROUND(X)(t), valid);                                  \
        }                                                                            \
    } while (0)
        BLOCKS(first, end, INPUT_GRADS);
#undef INPUT_GRADS
    }
}

INLINE void NAME(forward_row_block)(const struct addnorm_rows *p, int64_t row, int64_t last,
                                    const int rms, const int drop) {
    if (p->dim <= MAX_NARROW_DIM)
        for (; row + ROWS_AT_ONCE <= last; row += ROWS_AT_ONCE)
            NAME(forward_rows)(p, row, ROWS_AT_ONCE, rms, drop);
    for (; row < last; row++) NAME(forward_rows)(p, row, 1, rms, drop);
}

static void NAME(forward)(const struct addnorm_rows *args, int64_t first, int64_t last,
                          int64_t row_block) {
    /* A local copy: the compiler knows that no store through y or s changes it. */
    const struct addnorm_rows local = *args, *p = &local;
    (void)row_block;
    if (p->rms && p->drop_threshold)
        NAME(forward_row_block)(p, first, last, 1, 1);
    else if (p->rms)
        NAME(forward_row_block)(p, first, last, 1, 0);
    else if (p->drop_threshold)
        NAME(forward_row_block)(p, first, last, 0, 1);
    else
        NAME(forward_row_block)(p, first, last, 0, 0);
}

INLINE void NAME(backward_row_block)(const struct addnorm_rows *p, int64_t row, int64_t last,
                                     int64_t row_block, const int rms, const int drop) {
    for (; row < last; row++) NAME(backward_row)(p, row, row_block, rms, drop);
}

static void NAME(backward)(const struct addnorm_rows *args, int64_t first, int64_t last,
                           int64_t row_block) {
    const struct addnorm_rows local = *args, *p = &local;
    if (p->partial)
        memset(p->partial + 3 * row_block * p->dim, 0, sizeof(float) * 3 * (size_t)p->dim);
    if (p->rms && p->drop_threshold)
        NAME(backward_row_block)(p, first, last, row_block, 1, 1);
    else if (p->rms)
        NAME(backward_row_block)(p, first, last, row_block, 1, 0);
    else if (p->drop_threshold)
        NAME(backward_row_block)(p, first, last, row_block, 0, 1);
    else
        NAME(backward_row_block)(p, first, last, row_block, 0, 0);
}

static void NAME(dropout)(const struct addnorm_rows *p, int64_t first, int64_t last,
                          int64_t row_block) {
    const int64_t dim = p->dim;
    const vfloat keep_factor = vset(p->keep_factor);
    vdraws keep_mask[DRAW_CHUNK / BLOCK];
    (void)row_block;
    for (int64_t row = first; row < last; row++) {
        const F *f = (const F *)p->f + row * dim;
        F *y = (F *)p->y + row * dim;
        if (!p->drop_threshold) { /* the rate rounds to 0 */
            memcpy(y, f, sizeof(F) * (size_t)dim);
            continue;
        }
        for (int64_t from = 0; from < dim; from += DRAW_CHUNK) {
            const int64_t end = from + DRAW_CHUNK < dim ? from + DRAW_CHUNK : dim;
            NAME(draw_keep_masks)(p, row, from, end, keep_mask, 0, f, 0);
#define APPLY(i, valid)                                                           \
    do {                                                                          \
        block v = LOAD(F)(f + (i), valid);                                        \
        block k = dropout_factors(keep_mask + ((i) - from) / BLOCK, keep_factor); \
        for (int j = 0; j < 2; j++) v.v[j] *= k.v[j];                             \
        STORE(F)(y + (i), ROUND(F)(v), valid);                                    \
    } while (0)
            BLOCKS(from, end, APPLY);
#undef APPLY
        }
    }
}

#undef PASTE_
#undef PASTE
#undef LOAD
#undef STORE
#undef ROUND
#undef NAME
#undef BLOCKS
