/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of a model's config.json: what is accepted is traced for training and for generation, at
 * shapes of its own sizes. Nothing is allocated but the graph. */
#include "fuzz/fuzz_files.h"

#include <deepspeed/graph.h>
#include <deepspeed/model.h>

/* Most that a trace may make: an input of thousands of layers ends there. */
enum { CELLS = 1 << 12 };

static void trace(const ds_model *model, ds_trace_mode mode)
{
    const ds_trace spec = {.mode = mode,
                           .dtype = mode == DS_TRACE_TRAIN ? DS_DTYPE_BF16 : DS_DTYPE_F32,
                           .batch = 2,
                           .seq_length = 5,
                           .kv_length = 9};
    ds_cells *cells = NULL;
    ds_graph *graph = NULL;
    ds_nn *nn = NULL;
    if (ds_cells_create(fuzz_context(), CELLS, &cells) >= 0 &&
        ds_graph_create(fuzz_context(), cells, &graph) >= 0 &&
        ds_nn_create(graph, &spec, &nn) >= 0 && ds_model_trace(model, nn) < 0) {
        fuzz_require(*ds_ctx_error(fuzz_context()) != '\0', "an error without a message");
    }
    ds_nn_destroy(&nn);
    ds_graph_destroy(&graph);
    ds_cells_destroy(&cells);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ds_model *model = NULL;
    if (ds_model_from_config(fuzz_context(), fuzz_put("config.json", data, size), &model) >= 0) {
        const ds_model_info *info = ds_model_get_info(model);
        fuzz_require(info->vocab_size > 0 && info->max_positions > 0, "sizes");
        (void)ds_model_ignores(model, "model.layers.0.self_attn.rotary_emb.inv_freq");
        (void)ds_model_ignores(model, "");
        trace(model, DS_TRACE_TRAIN);
        trace(model, DS_TRACE_GENERATE);
        ds_model_destroy(&model);
    } else {
        fuzz_require(*ds_ctx_error(fuzz_context()) != '\0', "an error without a message");
    }
    return 0;
}
