/* SPDX-License-Identifier: Apache-2.0 */
/* Generation against transformers: 64 greedy tokens in fp32, whatever the pieces that the prompt
 * runs in; and the sampler.
 * labels: slow */
#include "accel/cpu/cpu_features.h"
#include "base/half.h"
#include "common/parity.h"
#include "common/scratch.h"
#include "infer/sampler.h"

#include <deepspeed/infer.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A number below n, of a linear congruential generator. */
static uint32_t rand_below(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*seed >> 33) % n);
}

static void greedy_of(ds_ctx *ctx, const char *name)
{
    parity_case p;
    uint32_t prompt[64];
    ds_generator *generator = NULL;
    parity_open(ctx, name, &p);
    const json_t *want = json_object_get(p.scalars, "greedy");
    const json_t *start = json_object_get(p.scalars, "prompt");
    const size_t n = json_array_size(start);
    assert_int_equal(json_array_size(want), 64);
    for (size_t i = 0; i < n; ++i) {
        prompt[i] = (uint32_t)json_integer_value(json_array_get(start, i));
    }
    const ds_generator_params params = {
        .model = p.model, .weights = p.folder, .dtype = DS_DTYPE_F32};
    CHECK_OK(ctx, ds_generator_create(ctx, &params, &generator));
    for (int round = 0; round < 2; ++round) { /* a second prompt starts anew */
        CHECK_OK(ctx, ds_generator_prompt(generator, prompt, n));
        for (size_t i = 0; i < 64; ++i) {
            const ds_sampling greedy = {0};
            uint32_t id = 0;
            CHECK_OK(ctx, ds_generator_next(generator, &greedy, &id));
            assert_int_equal(id, json_integer_value(json_array_get(want, i)));
        }
    }
    ds_generator_destroy(&generator);
    parity_close(&p);
}

static void greedy_like_transformers(void **state)
{
    static const char *const names[] = {"gpt2",
                                        "llama3_tied",
                                        "mixtral",
                                        "qwen3_moe",
                                        "stablelm",
                                        "gpt_neox",
                                        "phi3",
                                        "glm4",
                                        "cohere",
                                        "gemma2",
                                        "gemma3",
                                        "opt_behind",
                                        "stablelm_norms",
                                        "glm4_moe",
                                        "deepseek_v2",
                                        "deepseek_v3",
                                        "deepseek_v3_halves",
                                        "gpt_oss",
                                        "qwen3_next"};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        if (!check_long_row(i)) {
            continue;
        }
        greedy_of(*state, names[i]);
    }
}

/* Logits behind a prompt are those of the training graph at its last position: a longer prompt runs
 * in several pieces. */
static void pieces_agree(void **state)
{
    ds_ctx *ctx = *state;
    static const char *const names[] = {"mistral",
                                        "qwen3",
                                        "rope_yarn",
                                        "gpt2",
                                        "olmo2",
                                        "granite",
                                        "smollm3",
                                        "starcoder2",
                                        "stablelm_parallel",
                                        "gpt_neox",
                                        "phi3",
                                        "phi3_heads",
                                        "phi3_longrope",
                                        "glm",
                                        "glm4",
                                        "cohere",
                                        "gemma",
                                        "gemma2",
                                        "gemma3",
                                        "olmo",
                                        "gptj",
                                        "opt",
                                        "falcon",
                                        "falcon_groups",
                                        "falcon_heads",
                                        "falcon_rw",
                                        "bloom",
                                        "mpt",
                                        "cohere_norms",
                                        "cohere2",
                                        "opt_behind",
                                        "stablelm_norms",
                                        "glm4_moe",
                                        "deepseek_v2",
                                        "deepseek_v2_groups",
                                        "deepseek_v3",
                                        "deepseek_v3_halves",
                                        "gpt_oss",
                                        "qwen3_next"};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        if (!check_long_row(i + 1)) {
            continue;
        }
        parity_case p;
        ds_generator *generator = NULL;
        uint32_t ids[64];
        int64_t vocab = 0;
        parity_open(ctx, names[i], &p);
        float *all = parity_logits(ctx, &p, DS_DTYPE_F32, DS_ISA_REF);
        const int32_t *tokens = golden_i32(&p.golden, "tokens");
        const ds_generator_params params = {
            .model = p.model, .weights = p.folder, .dtype = DS_DTYPE_F32};
        CHECK_OK(ctx, ds_generator_create(ctx, &params, &generator));
        for (int64_t n = 1; n <= p.n_seq; n += 5) {
            for (int64_t t = 0; t < n; ++t) {
                ids[t] = (uint32_t)tokens[t];
            }
            CHECK_OK(ctx, ds_generator_prompt(generator, ids, (size_t)n));
            const float *got = ds_generator_logits(generator, &vocab);
            assert_int_equal(vocab, p.vocab);
            assert_true(check_relative_difference(got, all + (n - 1) * vocab, (size_t)vocab) <
                        1e-5);
        }
        ds_generator_destroy(&generator);
        free(all);
        parity_close(&p);
    }
}

/* Logits behind tokens that ran one by one have the bits of the same tokens run as a prompt, whose
 * pieces are of other lengths. */
static void steps_like_prompts_of(ds_ctx *ctx, const char *name, ds_dtype dtype)
{
    enum { STEPS = 40 };
    parity_case p;
    uint32_t ids[STEPS] = {1};
    int64_t vocab = 0;
    ds_generator *generator = NULL;
    parity_open(ctx, name, &p);
    const ds_generator_params params = {.model = p.model, .weights = p.folder, .dtype = dtype};
    CHECK_OK(ctx, ds_generator_create(ctx, &params, &generator));
    float *steps = malloc((size_t)p.vocab * STEPS * sizeof *steps);
    assert_non_null(steps);
    CHECK_OK(ctx, ds_generator_prompt(generator, ids, 1));
    for (size_t i = 0; i < STEPS; ++i) {
        const ds_sampling greedy = {0};
        memcpy(steps + i * (size_t)p.vocab, ds_generator_logits(generator, &vocab),
               (size_t)p.vocab * sizeof *steps);
        if (i + 1 < STEPS) {
            CHECK_OK(ctx, ds_generator_next(generator, &greedy, &ids[i + 1]));
        }
    }
    for (size_t n = 1; n <= STEPS; ++n) {
        CHECK_OK(ctx, ds_generator_prompt(generator, ids, n));
        if (memcmp(steps + (n - 1) * (size_t)p.vocab, ds_generator_logits(generator, &vocab),
                   (size_t)p.vocab * sizeof *steps) != 0) {
            fail_msg(
                "%s in %s: the logits of a prompt of %zu tokens have other bits than one by one",
                name, ds_dtype_name(dtype), n);
        }
    }
    free(steps);
    ds_generator_destroy(&generator);
    parity_close(&p);
}

static void steps_like_prompts(void **state)
{
    static const char *const names[] = {"mistral",
                                        "qwen3",
                                        "llama3_tied",
                                        "gpt2",
                                        "olmo2",
                                        "granite",
                                        "smollm3",
                                        "starcoder2",
                                        "stablelm_parallel",
                                        "gpt_neox",
                                        "phi3",
                                        "phi3_heads",
                                        "phi3_longrope",
                                        "glm",
                                        "glm4",
                                        "cohere",
                                        "gemma",
                                        "gemma2",
                                        "gemma3",
                                        "olmo",
                                        "gptj",
                                        "opt",
                                        "falcon",
                                        "falcon_groups",
                                        "falcon_heads",
                                        "falcon_rw",
                                        "bloom",
                                        "mpt",
                                        "cohere_norms",
                                        "cohere2",
                                        "opt_behind",
                                        "stablelm_norms",
                                        "glm4_moe",
                                        "deepseek_v2",
                                        "deepseek_v2_groups",
                                        "deepseek_v3",
                                        "deepseek_v3_halves",
                                        "gpt_oss",
                                        "qwen3_next"};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        if (!check_long_row(i + 2)) {
            continue;
        }
        steps_like_prompts_of(*state, names[i], DS_DTYPE_F32);
        steps_like_prompts_of(*state, names[i], DS_DTYPE_F16);
        if ((dsi_cpu_isa() & DS_ISA_AVX512_BF16) ==
            0) { /* above, prompts take tiles: attention.md */
            steps_like_prompts_of(*state, names[i], DS_DTYPE_BF16);
        }
    }
}

/* The next prompt of a conversation: the sequence so far, rarely cut or changed, and new ids; 0:
 * there is no room for it. */
static size_t next_prompt(uint32_t *ids, size_t n, size_t most, int64_t vocab, uint64_t *seed)
{
    const uint32_t kind = rand_below(seed, 8);
    n = kind == 0 ? rand_below(seed, (uint32_t)n + 1) : n;
    if (kind == 1 && n > 0) {
        ids[rand_below(seed, (uint32_t)n)] = rand_below(seed, (uint32_t)vocab);
    }
    size_t more = kind == 2 && n > 0 ? 0 : 1 + rand_below(seed, 40);
    while (more-- > 0) {
        if (n >= most) {
            return 0;
        }
        ids[n++] = rand_below(seed, (uint32_t)vocab);
    }
    return n;
}

enum { TURNS = 25, MOST = 700 };

typedef struct twins {
    const char *name;
    ds_generator *kept, *fresh;
    uint32_t ids[MOST + 1];
    size_t n, n_kept, length;
    int64_t vocab;
    uint64_t seed;
} twins;

/* Steps of both behind the same prompt, with the same bits. */
static void twins_step(ds_ctx *ctx, twins *t, int turn)
{
    const ds_sampling sampling = {.temperature = turn % 2 ? 0.9 : 0.0, .seed = (uint64_t)turn};
    for (uint32_t step = rand_below(&t->seed, 20);; --step) {
        uint32_t a = 0;
        uint32_t b = 0;
        int64_t vocab = 0;
        if (memcmp(ds_generator_logits(t->kept, &vocab), ds_generator_logits(t->fresh, &vocab),
                   (size_t)t->vocab * sizeof(float)) != 0) {
            fail_msg("%s in %s, turn %d, %zu ids: other bits than a fresh prompt", t->name,
                     ds_dtype_name(ds_generator_dtype(t->kept)), turn, t->n);
        }
        if (step == 0 || t->n >= t->length) {
            break;
        }
        CHECK_OK(ctx, ds_generator_next(t->kept, &sampling, &a));
        CHECK_OK(ctx, ds_generator_next(t->fresh, &sampling, &b));
        assert_int_equal(a, b);
        t->ids[t->n++] = a;
    }
}

static void twins_turn(ds_ctx *ctx, twins *t, int turn)
{
    const bool again =
        ds_generator_dtype(t->kept) == DS_DTYPE_BF16 && (dsi_cpu_isa() & DS_ISA_AVX512_BF16) != 0;
    const size_t before = t->n;
    uint32_t old[MOST + 1];
    size_t common = 0;
    size_t same = 0;
    memcpy(old, t->ids, sizeof old);
    t->n = next_prompt(t->ids, t->n, t->length, t->vocab, &t->seed);
    if (t->n == 0) { /* a new conversation, behind what the generator still holds */
        return;
    }
    while (common < before && common + 1 < t->n && old[common] == t->ids[common]) {
        ++common;
    }
    CHECK_OK(ctx, ds_generator_prompt_on(t->kept, t->ids, t->n, &same));
    CHECK_OK(ctx, ds_generator_prompt(t->fresh, t->ids, t->n));
    assert_true(before == 0 || (again ? same <= common : same == common));
    t->n_kept += same;
    twins_step(ctx, t, turn);
}

/* Turns of random conversations, what they have in common kept: the bits are those of fresh
 * prompts. */
static void kept_like_fresh_of(ds_ctx *ctx, const char *name, ds_dtype dtype, uint64_t seed)
{
    parity_case p;
    twins t = {.name = name, .seed = seed, .length = MOST};
    parity_open(ctx, name, &p);
    const int64_t limit = ds_model_get_info(p.model)->max_positions;
    t.length = limit > 0 && limit < MOST ? (size_t)limit : MOST;
    t.vocab = p.vocab;
    const ds_generator_params params = {
        .model = p.model, .weights = p.folder, .dtype = dtype, .max_length = (int64_t)t.length};
    CHECK_OK(ctx, ds_generator_create(ctx, &params, &t.kept));
    CHECK_OK(ctx, ds_generator_create(ctx, &params, &t.fresh));
    for (int turn = 0; turn < TURNS; ++turn) {
        twins_turn(ctx, &t, turn);
    }
    assert_true(t.n_kept > TURNS);
    ds_generator_destroy(&t.kept);
    ds_generator_destroy(&t.fresh);
    parity_close(&p);
}

static void kept_like_fresh(void **state)
{
    static const char *const names[] = {"mistral", "qwen3", "llama3_tied", "gpt2"};
    static const ds_dtype dtypes[] = {DS_DTYPE_F32, DS_DTYPE_F16, DS_DTYPE_BF16};
    for (uint64_t i = 0; i < 12; ++i) {
        kept_like_fresh_of(*state, names[i / 3], dtypes[i % 3], i + 1);
    }
}

static void bad_calls(void **state)
{
    ds_ctx *ctx = *state;
    parity_case p;
    ds_generator *generator = NULL;
    const ds_sampling greedy = {0};
    const uint32_t outside = 100000;
    uint32_t id = 0;
    parity_open(ctx, "llama3", &p);
    const ds_generator_params params = {.model = p.model, .weights = p.folder, .max_length = 3};
    CHECK_OK(ctx, ds_generator_create(ctx, &params, &generator));
    CHECK_FAILS(ctx, ds_generator_next(generator, &greedy, &id), DS_ERR_STATE, "prompt");
    CHECK_FAILS(ctx, ds_generator_prompt(generator, &outside, 1), DS_ERR_ARG, "100000");
    CHECK_FAILS(ctx, ds_generator_prompt(generator, &outside, 4), DS_ERR_LIMIT, "3");
    id = 1;
    CHECK_OK(ctx, ds_generator_prompt(generator, &id, 1));
    CHECK_OK(ctx, ds_generator_next(generator, &greedy, &id));
    CHECK_OK(ctx, ds_generator_next(generator, &greedy, &id));
    CHECK_FAILS(ctx, ds_generator_next(generator, &greedy, &id), DS_ERR_LIMIT, "3 positions");
    ds_generator_destroy(&generator);
    parity_close(&p);
}

/* Shares of draws follow the probabilities that temperature, top-k and top-p leave. */
static void sampler_shares(void **state)
{
    enum { N = 5, DRAWS = 20000 };
    static const float logits[N] = {0.0f, 2.0f, 1.0f, -1.0f, 1.5f};
    static const struct {
        ds_sampling sampling;
        bool kept[N];
    } cases[] = {
        {{.temperature = 1.0, .seed = 1}, {true, true, true, true, true}},
        {{.temperature = 2.0, .top_k = 3, .seed = 2}, {false, true, true, false, true}},
        {{.temperature = 1.0, .top_p = 0.6, .seed = 3}, {false, true, false, false, true}},
        {{.temperature = 1.0, .top_k = 4, .top_p = 0.5, .seed = 4},
         {false, true, false, false, true}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; ++c) {
        int hits[N] = {0};
        uint32_t order[N];
        float weight[N], key[N];
        const dsi_sample_room room = {order, weight, key};
        double total = 0.0;
        for (int i = 0; i < N; ++i) {
            total += cases[c].kept[i] ? exp(logits[i] / cases[c].sampling.temperature) : 0.0;
        }
        for (uint64_t draw = 0; draw < DRAWS; ++draw) {
            uint32_t id = 0;
            CHECK_OK(*state,
                     dsi_sample(*state, logits, N, &cases[c].sampling, draw, &room, NULL, &id));
            hits[id] += 1;
        }
        for (int i = 0; i < N; ++i) {
            const double p = exp(logits[i] / cases[c].sampling.temperature) / total;
            const double share = (double)hits[i] / DRAWS;
            assert_true(fabs(share - (cases[c].kept[i] ? p : 0.0)) < 0.015);
        }
    }
}

static int make_ctx(void **state)
{
    ds_ctx *ctx = NULL;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    *state = ctx;
    return 0;
}

static int drop_ctx(void **state)
{
    ds_ctx *ctx = *state;
    ds_ctx_destroy(&ctx);
    return 0;
}

/* A copy of the folder's tensors in bf16, with the bias of the choice of experts in bf16 too, or
 * the same numbers in f32. */
static void write_narrow(ds_ctx *ctx, const char *from, const char *to, ds_dtype of_bias)
{
    enum { N_TENSORS = 256 };
    static ds_tensor_source sources[N_TENSORS];
    static float biases[N_TENSORS][8];
    ds_safetensors *st = NULL;
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, from, &st));
    const size_t n = ds_safetensors_count(st);
    assert_true(n <= N_TENSORS);
    for (size_t i = 0; i < n; ++i) {
        const ds_safetensor *t = ds_safetensors_at(st, i);
        sources[i] = (ds_tensor_source){
            .name = t->name, .meta = t->meta, .stored = DS_DTYPE_BF16, .data = t->data};
        if (strstr(t->name, "e_score_correction_bias") != NULL) {
            assert_int_equal(ds_shape_count(t->meta.shape), 8);
            for (int e = 0; e < 8; ++e) {
                biases[i][e] = dsi_bf16_to_f32(dsi_f32_to_bf16(((const float *)t->data)[e]));
            }
            sources[i].data = biases[i];
            sources[i].stored = of_bias;
        }
    }
    CHECK_OK(ctx, ds_safetensors_write_folder(ctx, to, sources, n, 0, NULL));
    ds_safetensors_close(&st);
}

/* It is f32 in a model of bf16, however it is stored. */
static void a_bias_of_the_choice_in_16_bits(void **state)
{
    ds_ctx *ctx = *state;
    const ds_dtype stored[2] = {DS_DTYPE_BF16, DS_DTYPE_F32};
    float kept[2][256];
    int64_t vocab = 0;
    for (int i = 0; i < 2; ++i) {
        char *folder = scratch_make();
        parity_case p;
        ds_generator *generator = NULL;
        uint32_t ids[16];
        parity_open(ctx, "glm4_moe", &p);
        write_narrow(ctx, p.folder, folder, stored[i]);
        for (size_t t = 0; t < 16; ++t) {
            ids[t] = (uint32_t)golden_i32(&p.golden, "tokens")[t];
        }
        CHECK_OK(ctx, ds_generator_create(ctx,
                                          &(ds_generator_params){.model = p.model,
                                                                 .weights = folder,
                                                                 .dtype = DS_DTYPE_BF16},
                                          &generator));
        CHECK_OK(ctx, ds_generator_prompt(generator, ids, 16));
        const float *got = ds_generator_logits(generator, &vocab);
        assert_true(vocab <= 256);
        memcpy(kept[i], got, (size_t)vocab * sizeof *got);
        ds_generator_destroy(&generator);
        parity_close(&p);
        scratch_remove(folder);
    }
    assert_memory_equal(kept[0], kept[1], (size_t)vocab * sizeof kept[0][0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_like_transformers),
        cmocka_unit_test(pieces_agree),
        cmocka_unit_test(steps_like_prompts),
        cmocka_unit_test(kept_like_fresh),
        cmocka_unit_test(bad_calls),
        cmocka_unit_test(a_bias_of_the_choice_in_16_bits),
        cmocka_unit_test(sampler_shares),
    };
    return cmocka_run_group_tests(tests, make_ctx, drop_ctx);
}
