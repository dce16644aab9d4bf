/* Transposition of a matrix into panels, for one element type: included with X (f32 or bf16)
 * defined.
 *
 * A panel holds BLOCK rows of the matrix as columns, so that one vector load reads the same
 * feature of LANES rows:
 *
 *   matrix (count, dim)            panels (count / BLOCK, dim, BLOCK), float32
 *   row 0: a0 a1 a2 ...            panel 0: a0 b0 c0 ... | a1 b1 c1 ... | a2 b2 c2 ...
 *   row 1: b0 b1 b2 ...     ->
 *   row 2: c0 c1 c2 ...
 */

#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)
#define LOAD PASTE(load, X)
#define LOAD4 PASTE(load4, X)
#define NAME(name) PASTE(name, X)

/* Transpose `count` rows, `row_stride` elements apart, times `factor`. Lanes after the last row
 * repeat it, and no result uses them. */
static struct panels NAME(transpose)(const X *from, int64_t row_stride, int64_t count, int64_t dim,
                                     float factor, float *buffer) {
    for (int64_t t = 0; t < round_up(count, LANES); t += 4) {
        const X *row[4];
        float *to = buffer + t / BLOCK * dim * BLOCK + t % BLOCK;
        int64_t i = 0;
        for (int64_t n = 0; n < 4; n++) row[n] = from + min(t + n, count - 1) * row_stride;
        for (; i + 4 <= dim; i += 4) {
            float4 v[4];
            for (int n = 0; n < 4; n++) v[n] = LOAD4(row[n] + i) * factor;
            transpose4(v);
            for (int n = 0; n < 4; n++) memcpy(to + (i + n) * BLOCK, &v[n], sizeof v[n]);
        }
        for (; i < dim; i++)
            for (int n = 0; n < 4; n++) to[i * BLOCK + n] = LOAD(row[n] + i, 1).v[0][0] * factor;
    }
    return (struct panels){buffer, BLOCK, dim * BLOCK};
}
