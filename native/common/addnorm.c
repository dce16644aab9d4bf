/* Version of the library and instruction-set levels of this CPU. */
#include "common/addnorm.h"

int addnorm_version(void) { return ADDNORM_VERSION; }

int addnorm_levels(void) {
    int levels = 1 << ADDNORM_PORTABLE;
#ifdef ADDNORM_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        levels |= 1 << ADDNORM_AVX2;
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
            levels |= 1 << ADDNORM_AVX512;
    }
#endif
    return levels;
}
