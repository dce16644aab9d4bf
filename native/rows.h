/* The kernels for one pair of types: included by kernels.c with X, the type of the stream, and F,
 * that of the branch, defined. Every formula stands in a function of one block, which is used for
 * whole blocks and for what is left of a row. */

#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)
#define LOAD(T) PASTE(load, T)
#define STORE(T) PASTE(store, T)
#define ROUND(T) PASTE(round, T)
#define NAME(name) PASTE(PASTE(name, X), F)

/* One call for each block of features from `first` to `end`; the last may be short. */
#define BLOCKS(first, end, call)                                                        \
    do {                                                                                \
        int64_t i = first;                                                              \
        for (; i + BLOCK <= (end); i += BLOCK) call(i, BLOCK);                          \
        if (i < (end)) {                                                                \
            const int64_t rest = (end) - i;                                             \
            if (rest >= BLOCK) __builtin_unreachable(); /* no second code for whole blocks */ \
            call(i, rest);                                                              \
        }                                                                               \
    } while (0)

INLINE block NAME(scales)(const struct addnorm_rows *p, int64_t i, int64_t left) {
    if (p->scales) return load_f32(p->scales + i, left);
    return (block){{all(p->scale), all(p->scale)}};
}

INLINE block NAME(gains)(const struct addnorm_rows *p, int64_t i, int64_t left) {
    if (p->weight) return load_f32(p->weight + i, left);
    return (block){{all(1), all(1)}};
}

/* Which features of a row are kept, from the first to before the end. That is found out apart from
 * what is done with it, since both together want more registers than there are; meanwhile memory
 * brings what is read, or written, next. */
INLINE void NAME(draw)(const struct addnorm_rows *p, int64_t row, int64_t first, int64_t end,
                       draws *kept, const X *x, const F *f, const int written) {
    stream chance = open_stream(p, row, first);
    for (int64_t i = first; i < end; i += BLOCK) {
        if (written) { /* a constant is wanted there */
            if (x) __builtin_prefetch(x + i, 1);
            if (f) __builtin_prefetch(f + i, 1);
        } else {
            if (x) __builtin_prefetch(x + i, 0);
            if (f) __builtin_prefetch(f + i, 0);
        }
        *kept++ = next_block(&chance);
    }
}

/* s of a row, and the sum of it, or of its squares. */
INLINE float NAME(add)(const struct addnorm_rows *p, int64_t row, X *s, const int rms,
                       const int drop) {
    const X *x = (const X *)p->x + row * p->dim;
    const F *f = (const F *)p->f + row * p->dim;
    const floats factor = all(p->kept);
    draws kept[CHUNK / BLOCK];
    block total = {{{0}, {0}}};
    for (int64_t first = 0, end; first < p->dim; first = end) {
        end = drop && first + CHUNK < p->dim ? first + CHUNK : p->dim;
        if (drop) NAME(draw)(p, row, first, end, kept, x, f, 0);
#define ADD(i, left)                                                                    \
    do {                                                                                \
        block a = NAME(scales)(p, i, left), k;                                          \
        block v = LOAD(X)(x + (i), left), g = LOAD(F)(f + (i), left);                   \
        if (drop) k = factors(kept + ((i) - first) / BLOCK, factor);                       \
        for (int j = 0; j < 2; j++)                                                     \
            v.v[j] = a.v[j] * v.v[j] + (drop ? k.v[j] * g.v[j] : g.v[j]);               \
        v = ROUND(X)(v);                                                                \
        STORE(X)(s + (i), v, left);                                                     \
        for (int j = 0; j < 2; j++) total.v[j] += rms ? v.v[j] * v.v[j] : v.v[j];       \
    } while (0)
        BLOCKS(first, end, ADD);
#undef ADD
    }
    return sum(total.v[0] + total.v[1]);
}

/* The sum of (s - mean)^2 of a row. */
INLINE float NAME(vary)(const X *s, int64_t dim, float mean) {
    block total = {{{0}, {0}}};
#define VARY(i, left)                                                                   \
    do {                                                                                \
        block v = LOAD(X)(s + (i), left);                                               \
        for (int j = 0; j < 2; j++) v.v[j] -= mean;                                     \
        if ((left) < BLOCK) v = cut(v, left);                                           \
        for (int j = 0; j < 2; j++) total.v[j] += v.v[j] * v.v[j];                      \
    } while (0)
    BLOCKS(0, dim, VARY);
#undef VARY
    return sum(total.v[0] + total.v[1]);
}

/* y of a row. */
INLINE void NAME(scale)(const struct addnorm_rows *p, const X *s, X *y, float mean, float rstd,
                        const int rms) {
#define SCALE(i, left)                                                                  \
    do {                                                                                \
        block v = LOAD(X)(s + (i), left), w = NAME(gains)(p, i, left), b;               \
        if (p->bias) b = load_f32(p->bias + (i), left);                                 \
        for (int j = 0; j < 2; j++) {                                                   \
            v.v[j] = (rms ? v.v[j] : v.v[j] - mean) * rstd * w.v[j];                    \
            if (p->bias) v.v[j] += b.v[j];                                              \
        }                                                                               \
        STORE(X)(y + (i), ROUND(X)(v), left);                                           \
    } while (0)
    BLOCKS(0, p->dim, SCALE);
#undef SCALE
}

/* `count` rows, one pass over all of them after the other, so that the sums that end a pass need not
 * be waited for: only narrow ones, since memory brings one wide row after the other best. */
INLINE void NAME(forward_rows)(const struct addnorm_rows *p, int64_t row, const int count,
                               const int rms, const int drop) {
    const int64_t dim = p->dim;
    X *y = (X *)p->y + row * dim;
    X *s = p->s ? (X *)p->s + row * dim : y; /* y is written last, holds s till then */
    float total[ROWS], mean[ROWS], rstd[ROWS];
    for (int r = 0; r < count; r++) total[r] = NAME(add)(p, row + r, s + r * dim, rms, drop);
    for (int r = 0; r < count && !rms; r++) {
        mean[r] = total[r] / (float)dim;
        if (p->mean) p->mean[row + r] = mean[r];
        total[r] = NAME(vary)(s + r * dim, dim, mean[r]);
    }
    for (int r = 0; r < count; r++) {
        rstd[r] = 1 / __builtin_sqrtf(total[r] / (float)dim + p->eps);
        if (p->rstd) p->rstd[row + r] = rstd[r];
    }
    for (int r = 0; r < count; r++)
        NAME(scale)(p, s + r * dim, y + r * dim, rms ? 0 : mean[r], rstd[r], rms);
}

/* With h = (s - mean) * rstd and g = dy * weight:
 *   dweight += dy * h,  dbias += dy
 *   t = rstd * (g - mean(g) - h * mean(g * h)) + ds        no mean(g) for RMSNorm
 *   dx = a * t,  df = k * t,  dscales += x * t */
INLINE void NAME(backward_row)(const struct addnorm_rows *p, int64_t row, int64_t part,
                               const int rms, const int drop) {
    const int64_t dim = p->dim;
    const X *s = (const X *)p->s + row * dim, *dy = (const X *)p->dy + row * dim;
    const X *ds = p->ds ? (const X *)p->ds + row * dim : 0;
    const X *x = p->dscales ? (const X *)p->x + row * dim : 0;
    X *dx = p->dx ? (X *)p->dx + row * dim : 0;
    F *df = p->df ? (F *)p->df + row * dim : 0;
    float *dw = p->partial ? p->partial + 3 * part * dim : 0;
    float *db = dw ? dw + dim : 0, *da = dw ? db + dim : 0;
    const float mean = rms ? 0 : p->mean[row], rstd = p->rstd[row];
    const floats factor = all(p->kept);
    draws kept[CHUNK / BLOCK];
    floats one = {0}, two = {0};

#define SUM(i, left)                                                                    \
    do {                                                                                \
        block w = NAME(gains)(p, i, left), sw, sb;                                      \
        block h = LOAD(X)(s + (i), left), g = LOAD(X)(dy + (i), left);                  \
        if (p->dweight) sw = load_f32(dw + (i), left);                                  \
        if (p->dbias) sb = load_f32(db + (i), left);                                    \
        for (int j = 0; j < 2; j++) {                                                   \
            h.v[j] = (rms ? h.v[j] : h.v[j] - mean) * rstd;                             \
            if (p->dweight) sw.v[j] += g.v[j] * h.v[j];                                 \
            if (p->dbias) sb.v[j] += g.v[j];                                            \
            g.v[j] *= w.v[j];                                                           \
            if (!rms) one += g.v[j];                                               \
            two += g.v[j] * h.v[j];                                                \
        }                                                                               \
        if (p->dweight) store_f32(dw + (i), sw, left);                                  \
        if (p->dbias) store_f32(db + (i), sb, left);                                    \
    } while (0)
    BLOCKS(0, dim, SUM);
#undef SUM

    const float flat = rms ? 0 : sum(one) / (float)dim * rstd;
    const float tilt = sum(two) / (float)dim * rstd * rstd;
    for (int64_t first = 0, end; first < dim; first = end) {
        end = drop && first + CHUNK < dim ? first + CHUNK : dim;
        if (drop) NAME(draw)(p, row, first, end, kept, dx, df, 1);
#define SPREAD(i, left)                                                                 \
    do {                                                                                \
        block t = LOAD(X)(dy + (i), left), v = LOAD(X)(s + (i), left);                  \
        block w = NAME(gains)(p, i, left), u, k;                                        \
        if (ds) u = LOAD(X)(ds + (i), left);                                            \
        for (int j = 0; j < 2; j++) {                                                   \
            v.v[j] = rms ? v.v[j] * tilt : (v.v[j] - mean) * tilt + flat;               \
            t.v[j] = t.v[j] * (w.v[j] * rstd) - v.v[j];                                 \
            if (ds) t.v[j] += u.v[j];                                                   \
        }                                                                               \
        if (df) {                                                                       \
            block to = t;                                                               \
            if (drop) {                                                                 \
                k = factors(kept + ((i) - first) / BLOCK, factor);                         \
                for (int j = 0; j < 2; j++) to.v[j] *= k.v[j];                          \
            }                                                                           \
            STORE(F)(df + (i), ROUND(F)(to), left);                                     \
        }                                                                               \
        if (x) {                                                                        \
            block sa = load_f32(da + (i), left), z = LOAD(X)(x + (i), left);            \
            for (int j = 0; j < 2; j++) sa.v[j] += z.v[j] * t.v[j];                     \
            store_f32(da + (i), sa, left);                                              \
        }                                                                               \
        if (dx) {                                                                       \
            block a = NAME(scales)(p, i, left);                                         \
            for (int j = 0; j < 2; j++) t.v[j] *= a.v[j];                               \
            STORE(X)(dx + (i), ROUND(X)(t), left);                                      \
        }                                                                               \
    } while (0)
        BLOCKS(first, end, SPREAD);
#undef SPREAD
    }
}

INLINE void NAME(forward_part)(const struct addnorm_rows *p, int64_t row, int64_t last,
                               const int rms, const int drop) {
    if (p->dim <= NARROW)
        for (; row + ROWS <= last; row += ROWS) NAME(forward_rows)(p, row, ROWS, rms, drop);
    for (; row < last; row++) NAME(forward_rows)(p, row, 1, rms, drop);
}

static void NAME(forward)(const struct addnorm_rows *whole, int64_t first, int64_t last,
                          int64_t part) {
    const struct addnorm_rows own = *whole, *p = &own; /* which no store can change */
    (void)part;
    if (p->rms && p->dropped)
        NAME(forward_part)(p, first, last, 1, 1);
    else if (p->rms)
        NAME(forward_part)(p, first, last, 1, 0);
    else if (p->dropped)
        NAME(forward_part)(p, first, last, 0, 1);
    else
        NAME(forward_part)(p, first, last, 0, 0);
}

INLINE void NAME(backward_part)(const struct addnorm_rows *p, int64_t row, int64_t last, int64_t part,
                                const int rms, const int drop) {
    for (; row < last; row++) NAME(backward_row)(p, row, part, rms, drop);
}

static void NAME(backward)(const struct addnorm_rows *whole, int64_t first, int64_t last,
                           int64_t part) {
    const struct addnorm_rows own = *whole, *p = &own;
    if (p->partial) memset(p->partial + 3 * part * p->dim, 0, sizeof(float) * 3 * (size_t)p->dim);
    if (p->rms && p->dropped)
        NAME(backward_part)(p, first, last, part, 1, 1);
    else if (p->rms)
        NAME(backward_part)(p, first, last, part, 1, 0);
    else if (p->dropped)
        NAME(backward_part)(p, first, last, part, 0, 1);
    else
        NAME(backward_part)(p, first, last, part, 0, 0);
}

static void NAME(drop)(const struct addnorm_rows *p, int64_t first, int64_t last, int64_t part) {
    const int64_t dim = p->dim;
    const floats factor = all(p->kept);
    draws kept[CHUNK / BLOCK];
    (void)part;
    for (int64_t row = first; row < last; row++) {
        const F *f = (const F *)p->f + row * dim;
        F *y = (F *)p->y + row * dim;
        if (!p->dropped) { /* so small a share that it is none */
            memcpy(y, f, sizeof(F) * (size_t)dim);
            continue;
        }
        for (int64_t from = 0; from < dim; from += CHUNK) {
            const int64_t end = from + CHUNK < dim ? from + CHUNK : dim;
            NAME(draw)(p, row, from, end, kept, 0, f, 0);
#define DROP(i, left)                                                                   \
    do {                                                                                \
        block v = LOAD(F)(f + (i), left), k = factors(kept + ((i) - from) / BLOCK, factor); \
        for (int j = 0; j < 2; j++) v.v[j] *= k.v[j];                                   \
        STORE(F)(y + (i), ROUND(F)(v), left);                                           \
    } while (0)
            BLOCKS(from, end, DROP);
#undef DROP
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
