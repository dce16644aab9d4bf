/* Functions that kernels.c defines at each instruction-set level, and add_norm.c chooses from. */
#ifndef ADDNORM_ADD_NORM_LEVELS_H
#define ADDNORM_ADD_NORM_LEVELS_H

#include "add_norm/add_norm.h"

/* Process rows `first` to before `last`, which form one row block. */
typedef void addnorm_row_kernel(const struct addnorm_rows *p, int64_t first, int64_t last,
                                int64_t row_block);

struct addnorm_add_norm_level { /* one kernel per combination of dtypes */
    addnorm_row_kernel *forward[ADDNORM_DTYPES], *backward[ADDNORM_DTYPES],
        *dropout[ADDNORM_DTYPES];
};

extern const struct addnorm_add_norm_level addnorm_add_norm_portable, addnorm_add_norm_avx2,
    addnorm_add_norm_avx512;

#endif
