/* Rows as columns, for one type: included with X defined. */

#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)
#define LOAD PASTE(load, X)
#define LOAD4 PASTE(load4, X)
#define NAME(name) PASTE(name, X)

/* `count` rows times a factor as columns, BLOCK of them a panel; lanes after the last row repeat it,
 * for nobody. */
static struct panels NAME(turn)(const X *from, int64_t step, int64_t count, int64_t dim,
                                float factor, float *room) {
    for (int64_t t = 0; t < up(count, WIDE); t += 4) {
        const X *row[4];
        float *to = room + t / BLOCK * dim * BLOCK + t % BLOCK;
        int64_t i = 0;
        for (int64_t n = 0; n < 4; n++) row[n] = from + least(t + n, count - 1) * step;
        for (; i + 4 <= dim; i += 4) {
            four v[4];
            for (int n = 0; n < 4; n++) v[n] = LOAD4(row[n] + i) * factor;
            turn4(v);
            for (int n = 0; n < 4; n++) memcpy(to + (i + n) * BLOCK, &v[n], sizeof v[n]);
        }
        for (; i < dim; i++)
            for (int n = 0; n < 4; n++) to[i * BLOCK + n] = LOAD(row[n] + i, 1).v[0][0] * factor;
    }
    return (struct panels){room, BLOCK, dim * BLOCK};
}
