/* What santa_cuda.cu takes of the driver's header: the types of one function, which the runtime
   finds. */
#ifndef SANTA_STANDIN_CUDA_H
#define SANTA_STANDIN_CUDA_H
#include <stdint.h>

typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
enum CUresult { CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE };
enum CUtensorMapDataType { CU_TENSOR_MAP_DATA_TYPE_UINT16 = 1 };
enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE };
enum CUtensorMapSwizzle { CU_TENSOR_MAP_SWIZZLE_128B = 3 };
enum CUtensorMapL2promotion { CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3 };
enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE };

/* As large as the driver's, with what the emulator wants to know. */
struct CUtensorMap {
    const char *data;
    uint64_t shape[4], stride[3];
    uint32_t box[4];
    uint64_t others[6];
};
static_assert(sizeof(CUtensorMap) == 128, "as large as the driver's");

/* It takes what the driver's function takes, of tensors with four dimensions. */
inline CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType, cuuint32_t rank, void *data,
                                       const cuuint64_t *shape, const cuuint64_t *strides,
                                       const cuuint32_t *box, const cuuint32_t *every,
                                       CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                       CUtensorMapFloatOOBfill) {
    if (rank != 4 || (uintptr_t)data % 16 || box[0] * 2 > 128)
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < 4; i++) {
        if (shape[i] < 1 || shape[i] > (uint64_t)1 << 32 || box[i] < 1 || box[i] > 256 || every[i] != 1)
            return CUDA_ERROR_INVALID_VALUE;
        map->shape[i] = shape[i];
        map->box[i] = box[i];
    }
    for (int i = 0; i < 3; i++) {
        if (strides[i] % 16 || strides[i] >= (uint64_t)1 << 40) return CUDA_ERROR_INVALID_VALUE;
        map->stride[i] = strides[i];
    }
    map->data = (const char *)data;
    return CUDA_SUCCESS;
}
#endif
