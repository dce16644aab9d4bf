/* What kernels.c gives at each instruction-set level, and dispatch.c chooses from. */
#ifndef ADDNORM_LEVELS_H
#define ADDNORM_LEVELS_H

#include "addnorm.h"

typedef void addnorm_work(const struct addnorm_rows *p, int64_t first, int64_t last, int64_t part);

struct addnorm_level {
    addnorm_work *forward[ADDNORM_TYPES], *backward[ADDNORM_TYPES], *drop[ADDNORM_TYPES];
};

extern const struct addnorm_level addnorm_portable, addnorm_avx2, addnorm_avx512;

#endif
