/* The kernels for one pair of types: included by kernels.c with X, the type of the stream, and F,
 * that of the branch, defined. Every formula stands in a function of one block, which is used for
 * whole blocks and for what is left of a row. */

#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)
#define LOAD(T) PASTE(load, T)
#define STORE(T) PASTE(store, T)
#define ROUND(T) PASTE(round, T)
#define NAME(name) PASTE(PASTE(name, X), F)

/* One call for each block of `dim` features from 0; the last may be short. */
#define BLOCKS(call)                                                                              \
    do {                                                                                          \
        int64_t i = 0;                                                                            \
        for (; i + BLOCK <= dim; i += BLOCK) call(i, BLOCK);                                      \
        if (i < dim) {                                                                            \
            const int64_t rest = dim - i;                                                         \
            if (rest >= BLOCK) __builtin_unreachable(); /* no second code for whole blocks */     \
            call(i, rest);                                                                        \
        }                                                                                         \
    } while (0)

INLINE block NAME(scales)(const struct addnorm_rows *p, int64_t i, int64_t left) {
    if (p->scales) return load_f32(p->scales + i, left);
    return (block){{all(p->scale), all(p->scale)}};
}

INLINE block NAME(gains)(const struct addnorm_rows *p, int64_t i, int64_t left) {
    if (p->weight) return load_f32(p->weight + i, left);
    return (block){{all(1), all(1)}};
}

/* `count` rows at once, so that the processor has enough to do while sums are made: only narrow ones,
 * since of wide rows side by side it does not foresee what will be read. */
INLINE void NAME(forward_rows)(const struct addnorm_rows *p, int64_t row, const int count,
                               const int rms, const int drop) {
    const int64_t dim = p->dim;
    const X *x[ROWS];
    const F *f[ROWS];
    X *s[ROWS], *y[ROWS];
    stream chance[ROWS];
    block total[ROWS];
    float mean[ROWS], rstd[ROWS];
    for (int r = 0; r < count; r++) {
        x[r] = (const X *)p->x + (row + r) * dim;
        f[r] = (const F *)p->f + (row + r) * dim;
        y[r] = (X *)p->y + (row + r) * dim;
        s[r] = p->s ? (X *)p->s + (row + r) * dim : y[r]; /* y is written last, holds s till then */
        total[r] = (block){{{0}, {0}}};
        mean[r] = 0;
        chance[r] = drop ? open_stream(p, row + r) : (stream){0};
    }

#define ADD(i, left)                                                                              \
    do {                                                                                          \
        const block a = NAME(scales)(p, i, left);                                                 \
        for (int r = 0; r < count; r++) {                                                         \
            block v = LOAD(X)(x[r] + (i), left), g = LOAD(F)(f[r] + (i), left), k;                \
            if (drop) k = next_block(&chance[r]);                                                 \
            for (int j = 0; j < 2; j++)                                                           \
                v.v[j] = a.v[j] * v.v[j] + (drop ? k.v[j] * g.v[j] : g.v[j]);                     \
            v = ROUND(X)(v);                                                                      \
            STORE(X)(s[r] + (i), v, left);                                                        \
            for (int j = 0; j < 2; j++) total[r].v[j] += rms ? v.v[j] * v.v[j] : v.v[j];          \
        }                                                                                         \
    } while (0)
    BLOCKS(ADD);
#undef ADD

    if (!rms) {
        for (int r = 0; r < count; r++) {
            mean[r] = sum(total[r].v[0] + total[r].v[1]) / (float)dim;
            total[r] = (block){{{0}, {0}}};
            if (p->mean) p->mean[row + r] = mean[r];
        }
#define VARY(i, left)                                                                             \
    do {                                                                                          \
        for (int r = 0; r < count; r++) {                                                         \
            block v = LOAD(X)(s[r] + (i), left);                                                  \
            for (int j = 0; j < 2; j++) v.v[j] -= mean[r];                                        \
            if ((left) < BLOCK) v = cut(v, left);                                                 \
            for (int j = 0; j < 2; j++) total[r].v[j] += v.v[j] * v.v[j];                         \
        }                                                                                         \
    } while (0)
        BLOCKS(VARY);
#undef VARY
    }
    for (int r = 0; r < count; r++) {
        float square = sum(total[r].v[0] + total[r].v[1]) / (float)dim;
        rstd[r] = 1 / __builtin_sqrtf(square + p->eps);
        if (p->rstd) p->rstd[row + r] = rstd[r];
    }

#define SCALE(i, left)                                                                            \
    do {                                                                                          \
        const block w = NAME(gains)(p, i, left);                                                  \
        block b;                                                                                  \
        if (p->bias) b = load_f32(p->bias + (i), left);                                           \
        for (int r = 0; r < count; r++) {                                                         \
            block v = LOAD(X)(s[r] + (i), left);                                                  \
            for (int j = 0; j < 2; j++) {                                                         \
                v.v[j] = (rms ? v.v[j] : v.v[j] - mean[r]) * rstd[r] * w.v[j];                    \
                if (p->bias) v.v[j] += b.v[j];                                                    \
            }                                                                                     \
            STORE(X)(y[r] + (i), ROUND(X)(v), left);                                              \
        }                                                                                         \
    } while (0)
    BLOCKS(SCALE);
#undef SCALE
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

/* With h = (s - mean) * rstd and g = dy * weight:
 *   dweight += dy * h,  dbias += dy
 *   t = rstd * (g - mean(g) - h * mean(g * h)) + ds        no mean(g) for RMSNorm
 *   dx = a * t,  df = k * t,  dscales += x * t
 * `count` rows share the loads and stores of the sums over rows; more than one did not pay. */
INLINE void NAME(backward_rows)(const struct addnorm_rows *p, int64_t row, int64_t part,
                                const int count, const int rms, const int drop) {
    const int64_t dim = p->dim;
    const X *s[ROWS], *dy[ROWS];
    floats one[ROWS], two[ROWS];
    float mean[ROWS], rstd[ROWS], flat[ROWS], tilt[ROWS];
    float *dw = p->partial ? p->partial + 3 * part * dim : 0;
    float *db = dw ? dw + dim : 0, *da = dw ? db + dim : 0;
    for (int r = 0; r < count; r++) {
        s[r] = (const X *)p->s + (row + r) * dim;
        dy[r] = (const X *)p->dy + (row + r) * dim;
        one[r] = two[r] = (floats){0};
        mean[r] = rms ? 0 : p->mean[row + r];
        rstd[r] = p->rstd[row + r];
    }

#define SUM(i, left)                                                                    \
    do {                                                                                \
        block w = NAME(gains)(p, i, left), sw, sb;                                      \
        if (p->dweight) sw = load_f32(dw + (i), left);                                  \
        if (p->dbias) sb = load_f32(db + (i), left);                                    \
        for (int r = 0; r < count; r++) {                                               \
            block h = LOAD(X)(s[r] + (i), left), g = LOAD(X)(dy[r] + (i), left);        \
            for (int j = 0; j < 2; j++) {                                               \
                h.v[j] = (rms ? h.v[j] : h.v[j] - mean[r]) * rstd[r];                   \
                if (p->dweight) sw.v[j] += g.v[j] * h.v[j];                             \
                if (p->dbias) sb.v[j] += g.v[j];                                        \
                g.v[j] *= w.v[j];                                                       \
                if (!rms) one[r] += g.v[j];                                             \
                two[r] += g.v[j] * h.v[j];                                              \
            }                                                                           \
        }                                                                               \
        if (p->dweight) store_f32(dw + (i), sw, left);                                  \
        if (p->dbias) store_f32(db + (i), sb, left);                                    \
    } while (0)
    BLOCKS(SUM);
#undef SUM

    for (int r = 0; r < count; r++) {
        flat[r] = rms ? 0 : sum(one[r]) / (float)dim * rstd[r];
        tilt[r] = sum(two[r]) / (float)dim * rstd[r] * rstd[r];
    }

    for (int r = 0; r < count; r++) {
        const X *ds = p->ds ? (const X *)p->ds + (row + r) * dim : 0;
        const X *x = p->dscales ? (const X *)p->x + (row + r) * dim : 0;
        X *dx = p->dx ? (X *)p->dx + (row + r) * dim : 0;
        F *df = p->df ? (F *)p->df + (row + r) * dim : 0;
        stream chance = drop ? open_stream(p, row + r) : (stream){0};
#define SPREAD(i, left)                                                                 \
    do {                                                                                \
        block t = LOAD(X)(dy[r] + (i), left), v = LOAD(X)(s[r] + (i), left);            \
        block w = NAME(gains)(p, i, left), u, k;                                        \
        if (ds) u = LOAD(X)(ds + (i), left);                                            \
        for (int j = 0; j < 2; j++) {                                                   \
            t.v[j] = t.v[j] * w.v[j] * rstd[r];                                         \
            t.v[j] -= (rms ? v.v[j] : v.v[j] - mean[r]) * tilt[r];                      \
            if (!rms) t.v[j] -= flat[r];                                                \
            if (ds) t.v[j] += u.v[j];                                                   \
        }                                                                               \
        if (df) {                                                                       \
            block to = t;                                                               \
            if (drop) {                                                                 \
                k = next_block(&chance);                                                \
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
        BLOCKS(SPREAD);
#undef SPREAD
    }
}

INLINE void NAME(backward_part)(const struct addnorm_rows *p, int64_t row, int64_t last, int64_t part,
                              const int rms, const int drop) {
    for (; row < last; row++) NAME(backward_rows)(p, row, part, 1, rms, drop);
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
    (void)part;
    for (int64_t row = first; row < last; row++) {
        const F *f = (const F *)p->f + row * dim;
        F *y = (F *)p->y + row * dim;
        stream chance = open_stream(p, row);
#define DROP(i, left)                                                                   \
    do {                                                                                \
        block v = LOAD(F)(f + (i), left), k = next_block(&chance);                      \
        for (int j = 0; j < 2; j++) v.v[j] *= k.v[j];                                   \
        STORE(F)(y + (i), ROUND(F)(v), left);                                           \
    } while (0)
        BLOCKS(DROP);
#undef DROP
    }
}

#undef PASTE_
#undef PASTE
#undef LOAD
#undef STORE
#undef ROUND
#undef NAME
#undef BLOCKS
