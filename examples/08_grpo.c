/* SPDX-License-Identifier: Apache-2.0 */
/* GRPO: a model of random weights learns to answer with what the prompt says, from a reward alone.
 *
 * The loop of reinforcement learning on one set of weights: a server draws groups of answers from
 * the engine's own memory (ds_generator_params.share), a reward judges them, the engine takes a
 * step, ds_serve_update lets the server go on. Group-relative policy optimisation (Shao et al.,
 * "DeepSeekMath", arXiv 2402.03300, eq. 3): an answer's advantage is its reward minus its group's
 * mean, divided by the group's standard deviation. With one step a draw the ratio of new to old
 * policy is 1 and nothing is clipped, so that the gradient is the advantage times that of the
 * answer's mean log-probability: a micro-batch is an answer, its loss the mean cross entropy over
 * the answer's ids, and ds_engine_backward_outputs weighs it. Exits with 1 when the reward did not
 * rise. */
#include <deepspeed/deepspeed.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PROMPTS = 4,
    GROUP = 8, /* answers to a prompt */
    ANSWERS = PROMPTS * GROUP,
    PROMPT_IDS = 2, /* a mark, and the id that is to be repeated */
    ANSWER_IDS = 6,
    SEQ = 16,
    STEPS = 45,
    MARK = 1,
    FIRST = 8 /* prompts ask for ids 8, 9, 10, 11 */
};

static const char model_text[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 16, \"hidden_size\": 32, \"intermediate_size\": "
    "64,"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 2,"
    " \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0}";

static const char config_text[] =
    "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 32,\n"
    " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-2, \"weight_decay\": 0.0}},\n"
    " \"gradient_clipping\": 1.0, \"hybrid_engine\": {\"enabled\": true, \"max_out_tokens\": "
    "64}}\n";

typedef struct answer {
    uint32_t wanted, ids[ANSWER_IDS];
    int n;
    double reward, advantage;
} answer;

typedef struct policy {
    ds_ctx *ctx;
    ds_config *config;
    ds_model *model;
    ds_engine *engine;
    ds_server *server;
    answer answers[ANSWERS];
    uint64_t uids[ANSWERS];
} policy;

static ds_status open_policy(policy *p)
{
    static const char *const weighed[] = {"loss"};
    DS_TRY(ds_config_load_text(p->ctx, "grpo", config_text, strlen(config_text), NULL, &p->config));
    DS_TRY(ds_config_resolve(p->config, 1, NULL));
    DS_TRY(ds_model_from_text(p->ctx, model_text, &p->model));
    const ds_engine_params engine = {.model = p->model,
                                     .config = p->config,
                                     .seq_length = SEQ,
                                     .seed = 1,
                                     .gradient_outputs = weighed,
                                     .n_gradient_outputs = 1};
    DS_TRY(ds_initialize(p->ctx, &engine, &p->engine));
    const ds_serve_params serve = {.source = {.engine = p->engine, .share = true},
                                   .max_sequences = ANSWERS,
                                   .max_batch_tokens = 2 * ANSWERS,
                                   .kv_tokens = 64 * ANSWERS};
    return ds_serve_create(p->ctx, &serve, &p->server);
}

/* ---- drawing ---- */

static ds_status submit(policy *p, uint64_t seed)
{
    for (int i = 0; i < ANSWERS; ++i) {
        answer *a = &p->answers[i];
        *a = (answer){.wanted = FIRST + (uint32_t)(i / GROUP)};
        const uint32_t prompt[PROMPT_IDS] = {MARK, a->wanted};
        const ds_serve_request request = {
            .ids = prompt,
            .n = PROMPT_IDS,
            .max_new_tokens = ANSWER_IDS,
            .sampling = {.temperature = 1.0, .seed = seed + (uint64_t)i}};
        DS_TRY(ds_serve_submit(p->server, &request, &p->uids[i]));
    }
    return DS_OK;
}

static ds_status draw(policy *p, uint64_t seed)
{
    ds_serve_event events[ANSWERS];
    int left = ANSWERS;
    DS_TRY(submit(p, seed));
    while (left > 0) {
        size_t n = 0;
        DS_TRY(ds_serve_step(p->server, events, &n));
        for (size_t k = 0; k < n; ++k) {
            int i = 0;
            while (p->uids[i] != events[k].uid) {
                ++i;
            }
            p->answers[i].ids[p->answers[i].n++] = events[k].id;
            left -= events[k].finish != DS_SERVE_GOES_ON;
        }
    }
    return DS_OK;
}

/* ---- judging ---- */

/* The share of the answer that repeats what the prompt said. Returns the mean. */
static double judge(policy *p)
{
    double all = 0.0;
    for (int g = 0; g < PROMPTS; ++g) {
        answer *group = &p->answers[(ptrdiff_t)g * GROUP];
        double mean = 0.0;
        double square = 0.0;
        for (int i = 0; i < GROUP; ++i) {
            int right = 0;
            for (int k = 0; k < group[i].n; ++k) {
                right += group[i].ids[k] == group[i].wanted;
            }
            group[i].reward = (double)right / ANSWER_IDS;
            mean += group[i].reward / GROUP;
            square += group[i].reward * group[i].reward / GROUP;
        }
        const double deviation = sqrt(fmax(square - mean * mean, 0.0));
        for (int i = 0; i < GROUP; ++i) {
            group[i].advantage = (group[i].reward - mean) / (deviation + 1e-4);
        }
        all += mean / PROMPTS;
    }
    return all;
}

/* ---- learning ---- */

/* One answer: the loss is minus the mean log-probability of its ids. The engine gives it the
 * gradient 1 / ANSWERS by itself; what is given comes on top. */
static ds_status learn_one(policy *p, const answer *a)
{
    int32_t ids[SEQ] = {MARK, (int32_t)a->wanted};
    int32_t positions[SEQ];
    int32_t first[SEQ] = {0};
    int32_t targets[SEQ];
    for (int t = 0; t < SEQ; ++t) {
        positions[t] = t;
        targets[t] = -100;
    }
    for (int k = 0; k < a->n; ++k) {
        ids[PROMPT_IDS + k] = (int32_t)a->ids[k];
        targets[PROMPT_IDS + k - 1] = (int32_t)a->ids[k];
    }
    const ds_meta row = {DS_DTYPE_I32, ds_shape_2d(1, SEQ)};
    const ds_named_tensor inputs[] = {{"input_ids", {ids, row}},
                                      {"positions", {positions, row}},
                                      {"first", {first, row}},
                                      {"targets", {targets, row}}};
    float weight = (float)((a->advantage - 1.0) / ANSWERS);
    const ds_named_tensor gradient = {"loss", {&weight, {DS_DTYPE_F32, {0}}}};
    DS_TRY(ds_engine_forward(p->engine, &(ds_batch){inputs, 4}));
    DS_TRY(ds_engine_backward_outputs(p->engine, &gradient, 1));
    return ds_engine_step(p->engine); /* updates behind the last answer */
}

static ds_status train(policy *p)
{
    double begin = 0.0;
    double end = 0.0;
    for (int step = 1; step <= STEPS; ++step) {
        DS_TRY(draw(p, (uint64_t)step * ANSWERS));
        const double reward = judge(p);
        begin += step <= 5 ? reward / 5 : 0.0;
        end += step > STEPS - 5 ? reward / 5 : 0.0;
        if (step == 1 || step % 5 == 0) {
            (void)printf("step %2d  reward %.3f  %.*s\n", step, reward, (int)(reward * 40.0),
                         "########################################");
        }
        for (int i = 0; i < ANSWERS; ++i) {
            DS_TRY(learn_one(p, &p->answers[i]));
        }
        DS_TRY(ds_serve_update(p->server));
    }
    (void)printf("mean reward of the first and the last five steps: %.3f, %.3f\n", begin, end);
    return end > begin + 0.5
               ? DS_OK
               : ds_fail(p->ctx, DS_ERR_NUMERIC, "the reward went from %g to %g only", begin, end);
}

int main(void)
{
    policy p = {0};
    if (ds_ctx_create(NULL, &p.ctx) < 0) {
        return EXIT_FAILURE;
    }
    ds_status status = open_policy(&p);
    status = status < 0 ? status : train(&p);
    if (status < 0) {
        (void)fprintf(stderr, "08_grpo: %s\n", ds_ctx_error(p.ctx));
    }
    ds_serve_destroy(&p.server);
    ds_engine_destroy(&p.engine);
    ds_model_destroy(&p.model);
    ds_config_destroy(&p.config);
    ds_ctx_destroy(&p.ctx);
    return status < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
