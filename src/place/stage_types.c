/* SPDX-License-Identifier: Apache-2.0 */
/* Layers of a type, by DeepSpeed's partition "type:REGEX". There it is searched, in any case, in
 * the names of the layers' classes; here, where there are none, in the names that classes of such
 * layers commonly have, and in those of a layer's parameters. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "place/stages.h"

#include <pcre2.h>
#include <string.h>

static const char *const common[] = {"ParallelTransformerLayerPipe", "DecoderLayer", "Block"};
enum { N_COMMON = sizeof common / sizeof *common };

static bool found(const pcre2_code *code, pcre2_match_data *data, const char *name)
{
    return pcre2_match(code, (PCRE2_SPTR)name, strlen(name), 0, 0, data, NULL) >= 0;
}

static void weigh(const ds_graph *g, const pcre2_code *code, pcre2_match_data *data,
                  const uint32_t *layer, double *weight)
{
    bool all = false;
    for (uint32_t i = 0; i < N_COMMON; ++i) {
        all = all || found(code, data, common[i]);
    }
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        const dsi_node_info *node = &g->nodes[n];
        weight[layer[n]] = all && node->region > 0 ? 1.0 : weight[layer[n]];
        for (uint32_t i = 0; i < node->n_in && node->region > 0; ++i) {
            const ds_value v = dsi_node_in(g, node)[i];
            const bool read = v != DS_NONE && g->values[v].producer == DS_NONE;
            const ds_cell_info *cell = read ? &g->cells->items[g->values[v].cell] : NULL;
            if (cell != NULL && cell->kind == DS_CELL_PARAM && found(code, data, cell->name)) {
                weight[layer[n]] = 1.0;
            }
        }
    }
}

ds_status dsi_stage_types(const ds_graph *graph, const char *type, const uint32_t *layer,
                          uint32_t n_layers, double *weight)
{
    int error = 0;
    PCRE2_SIZE at = 0;
    double sum = 0.0;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)type, strlen(type), PCRE2_UTF | PCRE2_CASELESS,
                                     &error, &at, NULL);
    pcre2_match_data *data = code != NULL ? pcre2_match_data_create_from_pattern(code, NULL) : NULL;
    if (data != NULL) {
        weigh(graph, code, data, layer, weight);
    }
    pcre2_match_data_free(data);
    pcre2_code_free(code);
    if (data == NULL) {
        return ds_fail(graph->ctx, DS_ERR_CONFIG,
                       "pipeline.partition: \"type:%s\" is no regular expression that is known",
                       type);
    }
    for (uint32_t l = 0; l < n_layers; ++l) {
        sum += weight[l];
    }
    return sum > 0.0 ? DS_OK
                     : ds_fail(graph->ctx, DS_ERR_CONFIG,
                               "pipeline.partition: no layer is of \"type:%s\": it is searched in "
                               "%s, %s, %s and in the names of a layer's parameters",
                               type, common[0], common[1], common[2]);
}
