/* SPDX-License-Identifier: Apache-2.0 */
/* What PEFT calls the matrices of experts. See adapter_experts.h. */
#include "model/adapter_experts.h"

#include "model/adapter.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *end; /* of a stored name, behind "experts" */
    const char *parameter;
    int64_t part, parts;
} ends[] = {
    {".*.gate_proj.weight", DSI_EXPERTS_FIRST, 0, 2},
    {".*.up_proj.weight", DSI_EXPERTS_FIRST, 1, 2},
    {".*.down_proj.weight", DSI_EXPERTS_LAST, 0, 1},
    {".*.w1.weight", DSI_EXPERTS_FIRST, 0, 2}, /* Mixtral's */
    {".*.w3.weight", DSI_EXPERTS_FIRST, 1, 2},
    {".*.w2.weight", DSI_EXPERTS_LAST, 0, 1},
    {"." DSI_EXPERTS_FIRST, DSI_EXPERTS_FIRST, 0, 1}, /* gpt-oss' */
    {"." DSI_EXPERTS_LAST, DSI_EXPERTS_LAST, 0, 1},
};

/* transformers' class has the scope "mlp" where Mixtral's files have another. */
static void set_module(const char *name, size_t n, char module[DSI_EXPERTS_NAME_BYTES])
{
    static const char stored[] = ".block_sparse_moe.experts";
    const size_t k = sizeof stored - 1;
    if (n > k && strncmp(name + n - k, stored, k) == 0) {
        (void)snprintf(module, DSI_EXPERTS_NAME_BYTES, "%.*s.mlp.experts", (int)(n - k), name);
    } else {
        (void)snprintf(module, DSI_EXPERTS_NAME_BYTES, "%.*s", (int)n, name);
    }
}

void dsi_router_module(char *module)
{
    static const struct {
        const char *stored, *made;
    } names[] = {{".block_sparse_moe.gate", ".mlp.gate"},
                 {".block_sparse_moe.router.layer", ".block_sparse_moe.router"}};
    const size_t n = strlen(module);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        const size_t k = strlen(names[i].stored);
        if (n > k && strcmp(module + n - k, names[i].stored) == 0) {
            memcpy(module + n - k, names[i].made, strlen(names[i].made) + 1);
            return;
        }
    }
}

bool dsi_expert_matrix_of(const char *param, dsi_expert_matrix *out)
{
    static const char experts[] = ".experts";
    const size_t n = strlen(param), k = sizeof experts - 1;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; ++i) {
        const size_t e = strlen(ends[i].end);
        if (n > e + k && n < DSI_EXPERTS_NAME_BYTES && strcmp(param + n - e, ends[i].end) == 0 &&
            strncmp(param + n - e - k, experts, k) == 0) {
            set_module(param, n - e, out->module);
            out->parameter = ends[i].parameter;
            out->part = ends[i].part;
            out->parts = ends[i].parts;
            return true;
        }
    }
    return false;
}

void dsi_expert_b_end(const dsi_expert_matrix *matrix, char end[DSI_EXPERTS_END_BYTES])
{
    if (matrix->parts > 1) {
        (void)snprintf(end, DSI_EXPERTS_END_BYTES, ".lora_B.%d.weight", (int)matrix->part);
    } else {
        (void)snprintf(end, DSI_EXPERTS_END_BYTES, ".lora_B.weight");
    }
}

bool dsi_expert_stored_of(const ds_cell_info *cell, const ds_cell_info *of, dsi_expert_stored *out)
{
    const ds_shape shape = cell->meta.shape;
    const char *end = strstr(cell->name, ".lora_A.weight");
    dsi_expert_matrix matrix;
    if (cell->kind != DS_CELL_PARAM || shape.n_dims != 3 || of->meta.shape.n_dims != 3 ||
        !dsi_expert_matrix_of(of->name, &matrix)) {
        return false;
    }
    *out = (dsi_expert_stored){.is_b = end == NULL,
                               .part = matrix.part,
                               .parts = matrix.parts,
                               .meta.dtype = cell->meta.dtype};
    end = out->is_b ? strstr(cell->name, ".lora_B.") : end;
    if (end == NULL) {
        return false;
    }
    out->meta.shape = out->is_b
                          ? ds_shape_2d(matrix.parts * shape.dims[1], shape.dims[2] * shape.dims[0])
                          : ds_shape_2d(shape.dims[0] * shape.dims[1], shape.dims[2]);
    const char *name = dsi_adapter_plain_name(cell->name);
    (void)snprintf(out->name, sizeof out->name, "%.*s.lora_%c.weight", (int)(end - name), name,
                   out->is_b ? 'B' : 'A');
    return true;
}

int64_t dsi_expert_stored_at(const dsi_expert_stored *stored, ds_shape shape, int64_t i)
{
    const int64_t n_experts = shape.dims[0], n_out = shape.dims[1], rank = shape.dims[2];
    if (!stored->is_b) {
        return i;
    }
    const int64_t e = i / (n_out * rank), o = i / rank % n_out, k = i % rank;
    return ((stored->part * n_out + o) * rank + k) * n_experts + e;
}

ds_status dsi_expert_cells_of(const ds_adapter *a, const dsi_expert_matrix *matrix,
                              char base[DSI_EXPERTS_NAME_BYTES + 16])
{
    char last[DSI_EXPERTS_NAME_BYTES + 16];
    dsi_adapter_layer layer;
    bool both = false;
    (void)snprintf(last, sizeof last, "%s." DSI_EXPERTS_LAST, matrix->module);
    if (strcmp(matrix->parameter, DSI_EXPERTS_FIRST) == 0) {
        DS_TRY(dsi_adapter_match_parameter(a, last, &both, &layer));
    }
    (void)snprintf(base, DSI_EXPERTS_NAME_BYTES + 16, "%s%s", matrix->module,
                   both ? ".base_layer" : "");
    return DS_OK;
}
