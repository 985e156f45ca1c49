/* SPDX-License-Identifier: Apache-2.0 */
/* What tensor parallelism shards, found without names: pairs of columns and rows, and what stays
 * whole because a region cannot end. That the numbers hold: test_propagate_sim. */
#include "base/buf.h"
#include "common/check.h"
#include "common/golden.h"
#include "compile/train_graph.h"
#include "pass/fuse.h"
#include "place/tensor_rules.h"

#include <stdio.h>
#include <string.h>

enum { BATCH = 2, SEQ = 8, CEILING = 4096 };

static ds_ctx *ctx;

/* "q_proj.weight 0, o_proj.weight 1" of the first layer; every other layer has to be the same. */
static void find(const char *model_name, uint32_t tp, ds_trace_mode mode, bool fuse,
                 char text_out[2048])
{
    char path[4096];
    char mesh_text[32];
    dsi_mesh mesh;
    ds_model *model = NULL;
    ds_cells *cells = NULL;
    ds_graph *graph = NULL;
    ds_graph *fused = NULL;
    static dsi_place_on on[CEILING];
    dsi_buf text = dsi_buf_make(2048);
    uint32_t n_sharded = 0;
    uint32_t n_first = 0;
    uint32_t n_layers = 0;
    golden_path(path, sizeof path, "parity/%s/config.json", model_name);
    (void)snprintf(mesh_text, sizeof mesh_text, "mesh(tp=%u)", tp);
    CHECK_OK(ctx, dsi_mesh_parse(ctx, mesh_text, &mesh));
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &model));
    CHECK_OK(ctx, ds_cells_create(ctx, CEILING, &cells));
    const ds_trace trace = {.mode = mode,
                            .dtype = DS_DTYPE_F32,
                            .batch = BATCH,
                            .seq_length = SEQ,
                            .head_ranks = mode == DS_TRACE_TRAIN ? tp : 0,
                            .kv_length = mode == DS_TRACE_GENERATE ? 32 : 0};
    CHECK_OK(ctx, dsi_forward_graph(model, &trace, NULL, NULL, cells, &graph));
    if (fuse) {
        CHECK_OK(ctx, dsi_fuse(graph, &fused));
    }
    CHECK_OK(ctx, dsi_tensor_rules(fuse ? fused : graph, &mesh, NULL, on));
    for (ds_cell c = 0; c < ds_cells_count(cells); ++c) {
        const ds_cell_info *info = ds_cells_get(cells, c);
        const char *first = strstr(info->name, ".0.");
        n_layers += strstr(info->name, ".o_proj.weight") != NULL ||
                            strstr(info->name, ".c_attn.weight") != NULL ||
                            strstr(info->name, ".dense.weight") != NULL ||
                            strstr(info->name, ".out_proj.weight") != NULL
                        ? 1
                        : 0;
        n_sharded += on[c].kind == DSI_SHARD ? 1 : 0;
        if (on[c].kind == DSI_SHARD && first != NULL) {
            const char *at = info->name + strlen(info->name); /* the last two words */
            for (int dots = 0; at > info->name && dots < 2; --at) {
                dots += at[-1] == '.' ? 1 : 0;
                if (dots == 2) {
                    break;
                }
            }
            dsi_buf_printf(&text, "%s%s %d", n_first > 0 ? ", " : "", at, on[c].dim);
            if (on[c].blocks > 0) {
                dsi_buf_printf(&text, "/%d", on[c].blocks);
            }
            ++n_first;
        }
    }
    (void)snprintf(text_out, 2048, "%s", n_first > 0 ? dsi_buf_text(&text) : "");
    assert_true(n_first == 0 ? n_sharded == 0 : n_sharded % n_first == 0);
    if (n_first > 0) {
        assert_int_equal(n_sharded / n_first, n_layers);
    }
    dsi_buf_free(&text);
    ds_graph_destroy(&fused);
    ds_graph_destroy(&graph);
    ds_cells_destroy(&cells);
    ds_model_destroy(&model);
}

static void what_is_sharded(void **state)
{
    static const char mlp[] = "gate_proj.weight 0, up_proj.weight 0, down_proj.weight 1";
    static const char all[] = "q_proj.weight 0, k_proj.weight 0, v_proj.weight 0, o_proj.weight 1, "
                              "gate_proj.weight 0, up_proj.weight 0, down_proj.weight 1";
    static const char grouped[] = "q_proj.weight 0, o_proj.weight 1, "
                                  "gate_proj.weight 0, up_proj.weight 0, down_proj.weight 1";
    static const char biased[] =
        "q_proj.weight 0, q_proj.bias 0, k_proj.weight 0, k_proj.bias 0, v_proj.weight 0, "
        "v_proj.bias 0, o_proj.weight 1, gate_proj.weight 0, up_proj.weight 0, down_proj.weight 1";
    static const char plain[] =
        "q_proj.weight 0, q_proj.bias 0, k_proj.weight 0, k_proj.bias 0, v_proj.weight 0, "
        "v_proj.bias 0, o_proj.weight 1, c_fc.weight 0, c_fc.bias 0, c_proj.weight 1";
    static const char stablelm[] =
        "q_proj.weight 0, q_proj.bias 0, k_proj.weight 0, k_proj.bias 0, v_proj.weight 0, "
        "v_proj.bias 0, o_proj.weight 1, gate_proj.weight 0, up_proj.weight 0, down_proj.weight 1";
    static const char heads[] =
        "query_key_value.weight 0, query_key_value.bias 0, dense.weight 1, dense_h_to_4h.weight 0, "
        "dense_h_to_4h.bias 0, dense_4h_to_h.weight 1";
    static const char packed_mlp[] = "gate_up_proj.weight 0/2, down_proj.weight 1";
    static const char packed[] = "qkv_proj.weight 0/3, o_proj.weight 1, gate_up_proj.weight 0/2, "
                                 "down_proj.weight 1";
    static const char glm[] = "q_proj.weight 0, q_proj.bias 0, k_proj.weight 0, k_proj.bias 0, "
                              "v_proj.weight 0, v_proj.bias 0, o_proj.weight 1, "
                              "gate_up_proj.weight 0/2, down_proj.weight 1";
    static const char gptj[] = "q_proj.weight 0, k_proj.weight 0, v_proj.weight 0, "
                               "out_proj.weight 1, fc_in.weight 0, fc_in.bias 0, fc_out.weight 1";
    static const char opt[] =
        "q_proj.weight 0, q_proj.bias 0, k_proj.weight 0, k_proj.bias 0, v_proj.weight 0, "
        "v_proj.bias 0, out_proj.weight 1, fc1.weight 0, fc1.bias 0, fc2.weight 1";
    static const char normed[] =
        "q_proj.weight 0, k_proj.weight 0, v_proj.weight 0, q_norm.weight 0, k_norm.weight 0, "
        "o_proj.weight 1, gate_proj.weight 0, up_proj.weight 0, down_proj.weight 1";
    static const char own_norms[] = /* norms.*, of each head */
        "q_proj.weight 0, k_proj.weight 0, v_proj.weight 0, *.weight 0, *.weight 0, "
        "o_proj.weight 1, gate_proj.weight 0, up_proj.weight 0, down_proj.weight 1";
    static const char
        latent[] = /* attention is whole: all heads share a key; experts, shared ones */
        "gate_proj.weight 1, up_proj.weight 1, down_proj.weight 2, gate_proj.weight 0, "
        "up_proj.weight 0, down_proj.weight 1";
    static const char sinks[] =
        "q_proj.weight 0, q_proj.bias 0, k_proj.weight 0, k_proj.bias 0, "
        "v_proj.weight 0, v_proj.bias 0, self_attn.sinks 0, o_proj.weight 1";
    static const char gpt2[] = /* q, k and v are packed */
        "c_attn.weight 1/3, c_attn.bias 0/3, c_proj.weight 0, c_fc.weight 1, c_fc.bias 0, "
        "c_proj.weight 0";
    static const struct {
        const char *model;
        uint32_t tp;
        const char *want;
    } rows[] = {
        {"llama3", 2, all},
        {"llama3", 4, grouped}, /* two heads of keys and values */
        {"llama2", 4, all},
        {"llama3", 8, mlp}, /* four heads */
        {"llama3", 16, ""}, /* 40 columns */
        {"mistral", 2, all},
        {"qwen2", 2, biased},
        {"qwen3", 2, all},
        {"gpt2", 2, "c_fc.weight 1, c_fc.bias 0, c_proj.weight 0"}, /* three heads */
        {"gpt2", 3, gpt2},
        {"llama3_tied", 2, all},
        {"olmo2", 2, mlp}, /* its norms are over all heads of q and k */
        {"granite", 2, biased},
        {"smollm3", 2, all},
        {"starcoder2", 2, plain},
        {"stablelm", 2, stablelm},
        {"stablelm_parallel", 2, all},
        {"gpt_neox", 2, heads},  /* q, k and v of each head are packed */
        {"phi3", 2, packed_mlp}, /* packed with fewer heads of k and v: not by heads */
        {"phi3_heads", 2, packed},
        {"glm", 2, glm},
        {"glm4", 2, glm},
        {"cohere", 2, all},
        {"gemma", 2, all},
        {"gemma2", 2, all},
        {"gemma3", 2, all},
        {"olmo", 2, all},
        {"gptj", 2, gptj},
        {"opt", 2, opt},
        {"falcon", 2, "dense_h_to_4h.weight 0, dense_4h_to_h.weight 1"}, /* one head of keys */
        {"falcon_groups", 2, heads},
        {"bloom", 2, heads}, /* the slopes go by the number of a head */
        {"mpt", 2, "Wqkv.weight 0/3, out_proj.weight 1, up_proj.weight 0, down_proj.weight 1"},
        {"cohere_norms", 2, normed},
        {"cohere2", 2, all},
        {"opt_behind", 2, opt},
        {"stablelm_norms", 2, own_norms},
        {"deepseek_v2_groups", 2, latent},
        {"deepseek_v3_halves", 2, latent},
        {"gpt_oss", 2, sinks}, /* columns of gate and up in turns, of stacked experts */
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        for (int fuse = 0; fuse < 2; ++fuse) {
            char text[2048];
            find(rows[i].model, rows[i].tp, DS_TRACE_TRAIN, fuse == 1, text);
            if (strcmp(text, rows[i].want) != 0) {
                fail_msg("%s, tp=%u%s: %s", rows[i].model, rows[i].tp, fuse ? ", fused" : "", text);
            }
        }
    }
}

static int set_up(void **state)
{
    (void)state;
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    return ds_ctx_create(&params, &ctx);
}

static int tear_down(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_sharded),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
