/* SPDX-License-Identifier: Apache-2.0 */
/* See pickle_globals.h. The list: what torch.save writes for tensors, and what DeepSpeed's
 * checkpoints hold besides. A new line here must name something whose meaning is its data. */
#include "io/pickle_globals.h"

#include <string.h>

/* torch.distributed.checkpoint: its .metadata */
#define DCP "torch.distributed.checkpoint"
#define STORAGE(name, dtype, bytes)                                                                \
    {                                                                                              \
        "torch", #name "Storage", DSI_PICKLE_TYPE, DS_DTYPE_##dtype, bytes                         \
    }
#define RECORD(module, name)                                                                       \
    {                                                                                              \
        module, name, DSI_PICKLE_RECORD, DS_DTYPE_NONE, 0                                          \
    }

static const dsi_pickle_global globals[] = {
    {"torch._utils", "_rebuild_tensor_v2", DSI_PICKLE_REBUILD, DS_DTYPE_NONE, 0},
    {"torch._utils", "_rebuild_parameter", DSI_PICKLE_PARAMETER, DS_DTYPE_NONE, 0},
    {"torch._tensor", "_rebuild_from_type_v2", DSI_PICKLE_TYPED, DS_DTYPE_NONE, 0},
    {"collections", "OrderedDict", DSI_PICKLE_ORDERED, DS_DTYPE_NONE, 0},
    {"torch", "Size", DSI_PICKLE_SIZE, DS_DTYPE_NONE, 0},
    {"deepspeed.runtime.zero.config", "ZeroStageEnum", DSI_PICKLE_ENUM, DS_DTYPE_NONE, 0},
    STORAGE(Float, F32, 4),
    STORAGE(BFloat16, BF16, 2),
    STORAGE(Half, F16, 2),
    STORAGE(Double, F64, 8),
    STORAGE(Long, I64, 8),
    STORAGE(Int, I32, 4),
    STORAGE(Char, I8, 1),
    STORAGE(Byte, U8, 1),
    STORAGE(Bool, BOOL, 1),
    STORAGE(Short, NONE, 2),
    RECORD("torch", "Tensor"),
    RECORD("torch.nn.parameter", "Parameter"),
    RECORD("deepspeed.runtime.fp16.loss_scaler", "LossScaler"),
    RECORD("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler"),
    RECORD("deepspeed.utils.tensor_fragment", "fragment_address"),
    RECORD("deepspeed.checkpoint.universal_checkpoint", "SubparamShape"),
    RECORD("torch", "device"),
    RECORD("torch", "float32"),
    RECORD("torch", "float16"),
    RECORD("torch", "bfloat16"),
    RECORD("torch", "float64"),
    RECORD("torch", "int64"),
    RECORD("torch", "int32"),
    RECORD("torch", "int8"),
    RECORD("torch", "uint8"),
    RECORD("torch", "bool"),
    RECORD("torch.serialization", "_get_layout"),
    RECORD(DCP ".metadata", "Metadata"),
    RECORD(DCP ".metadata", "TensorStorageMetadata"),
    RECORD(DCP ".metadata", "BytesStorageMetadata"),
    RECORD(DCP ".metadata", "TensorProperties"),
    RECORD(DCP ".metadata", "ChunkStorageMetadata"),
    RECORD(DCP ".metadata", "MetadataIndex"),
    RECORD(DCP ".metadata", "StorageMeta"),
    RECORD(DCP ".metadata", "_MEM_FORMAT_ENCODING"),
    RECORD(DCP ".filesystem", "_StorageInfo"),
    RECORD("pathlib", "PosixPath"),
    RECORD("argparse", "Namespace"),
    RECORD("numpy.core.multiarray", "scalar"),
    RECORD("numpy._core.multiarray", "scalar"),
    RECORD("numpy", "dtype"),
    RECORD("_codecs", "encode"),
};

static bool is(const char *text, const char *start, size_t n)
{
    return strlen(text) == n && memcmp(text, start, n) == 0;
}

const dsi_pickle_global *dsi_pickle_global_find(const char *module, size_t n_module,
                                                const char *name, size_t n_name)
{
    for (size_t i = 0; i < sizeof globals / sizeof globals[0]; ++i) {
        if (is(globals[i].name, name, n_name) && is(globals[i].module, module, n_module)) {
            return &globals[i];
        }
    }
    return NULL;
}
