/* SPDX-License-Identifier: Apache-2.0 */
/* Every flag that fills a key is in force or refused by name: random files (a key absent, "auto" or
 * a number; sections absent; optimizers and schedules that have the key or not) and random flags,
 * against a model that knows only which keys a section has and what the numbers are.
 *
 * DS_FLAGS_CASES: how many files (default 4000). DS_FLAGS_SEED: where the numbers start. */
#include "common/check.h"
#include "config/config_values.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t random_state;

static uint32_t draw(uint32_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33) % n;
}

/* A key of the file. */
typedef struct key {
    enum { ABSENT, AUTO, NUMBER } how;
    double number;
} key;

static key draw_key(const double *values, uint32_t n)
{
    const uint32_t how = draw(3);
    return how == 0 ? (key){ABSENT, 0} : how == 1 ? (key){AUTO, 0} : (key){NUMBER, values[draw(n)]};
}

static ds_maybe draw_flag(const double *values, uint32_t n)
{
    return draw(3) == 0 ? ds_known(values[draw(n)]) : (ds_maybe){0};
}

/* What is known of an optimizer or a schedule: which keys it has. */
typedef struct kind {
    const char *name;
    bool betas, eps; /* lr and weight_decay: all */
} kind;
typedef struct plan_kind {
    const char *name;
    bool max_lr, warmup, total, cycle;
} plan_kind;

static const kind optimizers[] = {
    {NULL, false, false},  {"AdamW", true, true},    {"Adam", true, true}, {"SGD", false, false},
    {"Lion", true, false}, {"Adagrad", false, true}, {"Lamb", true, true},
};
static const plan_kind schedules[] = {
    {NULL, false, false, false, false},         {"WarmupLR", true, true, false, false},
    {"WarmupDecayLR", true, true, true, false}, {"WarmupCosineLR", false, true, true, false},
    {"OneCycle", false, false, false, true},    {"LRRangeTest", false, false, false, false},
};

typedef struct file {
    const kind *optimizer;
    const plan_kind *schedule;
    uint32_t world;
    bool cycle_momentum;
    key total, micro, steps, clip;                /* the batch triple, gradient_clipping */
    key lr, beta1, beta2, eps, decay, high, warm; /* betas: beta1.how is both's */
} file;

static const double rates[] = {1e-3, 2e-5, 0.5}, betas1[] = {0.8, 0.95}, betas2[] = {0.95, 0.99},
                    epsilons[] = {1e-8, 1e-6}, decays[] = {0.0, 0.01, 0.1},
                    norms[] = {0.0, 0.5, 1.0}, warm_ups[] = {0, 1, 7, 40}, counts[] = {1, 2, 3, 4},
                    totals[] = {2, 4, 8, 12, 24};
#define DRAW_KEY(values)  draw_key(values, sizeof(values) / sizeof *(values))
#define DRAW_FLAG(values) draw_flag(values, sizeof(values) / sizeof *(values))

static file draw_file(void)
{
    file f = {.optimizer = &optimizers[draw(sizeof optimizers / sizeof *optimizers)],
              .schedule = &schedules[draw(sizeof schedules / sizeof *schedules)],
              .world = 1 + draw(2),
              .cycle_momentum = draw(2) == 0,
              .total = DRAW_KEY(totals),
              .micro = DRAW_KEY(counts),
              .steps = DRAW_KEY(counts),
              .clip = DRAW_KEY(norms),
              .lr = DRAW_KEY(rates),
              .beta1 = DRAW_KEY(betas1),
              .eps = DRAW_KEY(epsilons),
              .decay = DRAW_KEY(decays),
              .high = DRAW_KEY(rates),
              .warm = DRAW_KEY(warm_ups)};
    f.beta2 = (key){f.beta1.how, betas2[draw(2)]};
    f.warm.number = fmax(1, f.warm.number); /* the key's least */
    return f;
}

static ds_trainer_values draw_flags(void)
{
    return (ds_trainer_values){.micro_batch = DRAW_FLAG(counts),
                               .gradient_accumulation_steps = DRAW_FLAG(counts),
                               .learning_rate = DRAW_FLAG(rates),
                               .weight_decay = DRAW_FLAG(decays),
                               .adam_beta1 = DRAW_FLAG(betas1),
                               .adam_beta2 = DRAW_FLAG(betas2),
                               .adam_epsilon = DRAW_FLAG(epsilons),
                               .max_grad_norm = DRAW_FLAG(norms),
                               .warmup_steps = DRAW_FLAG(warm_ups)};
}

/* ---- the file as text ------------------------------------------------------------------------ */

typedef struct text {
    char data[2048];
    size_t n;
    bool first;
} text;

static void put(text *t, const char *name, const char *value)
{
    t->n += (size_t)snprintf(t->data + t->n, sizeof t->data - t->n, "%s\"%s\": %s",
                             t->first ? "" : ", ", name, value);
    t->first = false;
}

static void put_key(text *t, const char *name, key k)
{
    char value[64] = "\"auto\"";
    if (k.how == NUMBER) {
        (void)snprintf(value, sizeof value, "%.17g", k.number);
    }
    if (k.how != ABSENT) {
        put(t, name, value);
    }
}

static void open_section(text *t, const char *name, const char *type)
{
    char value[128];
    (void)snprintf(value, sizeof value, "{\"type\": \"%s\", \"params\": {", type);
    put(t, name, value);
    t->first = true;
}

static void close_section(text *t)
{
    t->n += (size_t)snprintf(t->data + t->n, sizeof t->data - t->n, "}}");
    t->first = false;
}

static void write_file(const file *f, text *t)
{
    char pair[96];
    *t = (text){.first = true};
    t->data[t->n++] = '{';
    put_key(t, "train_batch_size", f->total);
    put_key(t, "train_micro_batch_size_per_gpu", f->micro);
    put_key(t, "gradient_accumulation_steps", f->steps);
    put_key(t, "gradient_clipping", f->clip);
    if (f->optimizer->name != NULL) {
        open_section(t, "optimizer", f->optimizer->name);
        put_key(t, "lr", f->lr);
        put_key(t, "weight_decay", f->decay);
        if (f->optimizer->eps) {
            put_key(t, "eps", f->eps);
        }
        if (f->optimizer->betas && f->beta1.how != ABSENT) {
            (void)snprintf(pair, sizeof pair, "[%.17g, %.17g]", f->beta1.number, f->beta2.number);
            put(t, "betas", f->beta1.how == AUTO ? "\"auto\"" : pair);
        }
        close_section(t);
    }
    if (f->schedule->name != NULL) {
        open_section(t, "scheduler", f->schedule->name);
        if (f->schedule->max_lr) {
            put_key(t, "warmup_max_lr", f->high);
        }
        if (f->schedule->warmup) {
            put_key(t, "warmup_num_steps", f->warm);
        }
        if (f->schedule->total) {
            put(t, "total_num_steps", "100");
        }
        if (f->schedule->cycle) {
            put(t, "cycle_min_lr", "0.1");
            put(t, "cycle_max_lr", "0.2");
            put(t, "cycle_momentum", f->cycle_momentum ? "true" : "false");
        }
        close_section(t);
    }
    t->data[t->n++] = '}';
}

/* ---- the model ------------------------------------------------------------------------------- */

/* What must be: a refusal of each of these flags, or, when there is none, these values. */
typedef struct verdict {
    const char *refused[16];
    size_t n_refused;
    bool batch_wrong; /* the triple itself does not fit */
    bool file_wrong;  /* nor does the file's alone */
    int64_t total, micro, steps;
} verdict;

static void refuse(verdict *v, const char *flag)
{
    v->refused[v->n_refused++] = flag;
}

static void judge(verdict *v, ds_maybe flag, bool has_key, key k, const char *name)
{
    if (flag.known && (!has_key || (k.how == NUMBER && k.number != flag.value))) {
        refuse(v, name);
    }
}

static int64_t in_force(key k, ds_maybe flag, key total, int64_t usual)
{
    if (k.how == NUMBER || flag.known) {
        return (int64_t)(flag.known ? flag.value : k.number);
    }
    return k.how == AUTO && total.how != NUMBER ? usual : 0;
}

static void judge_batch(verdict *v, const file *f, const ds_trainer_values *t)
{
    const int64_t w = f->world;
    v->file_wrong = f->total.how == NUMBER && f->micro.how == NUMBER && f->steps.how == NUMBER &&
                    fmod(f->total.number, f->micro.number * f->steps.number) != 0;
    int64_t all = f->total.how == NUMBER ? (int64_t)f->total.number : 0;
    int64_t m = in_force(f->micro, t->micro_batch, f->total, 8);
    int64_t g = in_force(f->steps, t->gradient_accumulation_steps, f->total, 1);
    judge(v, t->micro_batch, true, f->micro, "--micro_batch");
    judge(v, t->gradient_accumulation_steps, true, f->steps, "--gradient_accumulation_steps");
    v->batch_wrong = all == 0 && m == 0;
    if (all != 0 && m == 0) {
        g = g == 0 ? 1 : g;
        v->batch_wrong = all % (g * w) != 0;
        m = all / (g * w);
    } else if (all != 0 && g == 0) {
        v->batch_wrong = all % (m * w) != 0;
        g = all / (m * w);
    } else if (m != 0) {
        g = g == 0 ? 1 : g;
        v->batch_wrong = all != 0 && all != m * g * w;
        all = m * g * w;
    }
    v->total = all;
    v->micro = m;
    v->steps = g;
}

static verdict judge_all(const file *f, const ds_trainer_values *t)
{
    verdict v = {0};
    const plan_kind *s = f->schedule;
    const bool optimizer = f->optimizer->name != NULL;
    const bool own_rates = s->name != NULL && !s->max_lr && !s->warmup; /* the schedule's alone */
    judge_batch(&v, f, t);
    judge(&v, t->max_grad_norm, true, f->clip, "--max_grad_norm");
    const key none = {ABSENT, 0};
    judge(&v, t->learning_rate, (optimizer || s->max_lr) && !own_rates, optimizer ? f->lr : none,
          "--learning_rate");
    if (s->max_lr) {
        judge(&v, t->learning_rate, true, f->high, "--learning_rate");
    }
    judge(&v, t->weight_decay, optimizer, f->decay, "--weight_decay");
    judge(&v, t->adam_epsilon, f->optimizer->eps, f->eps, "--adam_epsilon");
    judge(&v, t->adam_beta1, f->optimizer->betas && !(s->cycle && f->cycle_momentum), f->beta1,
          "--adam_beta1");
    judge(&v, t->adam_beta2, f->optimizer->betas, f->beta2, "--adam_beta2");
    if (t->warmup_steps.known && (t->warmup_steps.value != 0 || s->warmup)) {
        judge(&v, ds_known(fmax(1, t->warmup_steps.value)), s->warmup, f->warm, "--warmup_steps");
    }
    return v;
}

/* ---- the comparison -------------------------------------------------------------------------- */

static void hold(const char *what, ds_maybe flag, double got, const char *file_text)
{
    if (flag.known && flag.value != got) {
        fail_msg("%s is %.17g, not in force: %.17g with %s", what, flag.value, got, file_text);
    }
}

static void values_hold(const ds_config *config, const file *f, const ds_trainer_values *t,
                        const verdict *want, const char *words)
{
    const ds_config_values *v = dsi_config_values(config);
    if (v->batch.train_batch_size != want->total ||
        v->batch.train_micro_batch_size_per_gpu != want->micro ||
        v->batch.gradient_accumulation_steps != want->steps) {
        fail_msg("batch %" PRId64 " = %" PRId64 " × %" PRId64 ", expected %" PRId64 " = %" PRId64
                 " × %" PRId64 " with %s",
                 v->batch.train_batch_size, v->batch.train_micro_batch_size_per_gpu,
                 v->batch.gradient_accumulation_steps, want->total, want->micro, want->steps,
                 words);
    }
    hold("--micro_batch", t->micro_batch, (double)v->batch.train_micro_batch_size_per_gpu, words);
    hold("--gradient_accumulation_steps", t->gradient_accumulation_steps,
         (double)v->batch.gradient_accumulation_steps, words);
    hold("--max_grad_norm", t->max_grad_norm, v->gradient_clipping, words);
    if (f->optimizer->name != NULL) {
        hold("--learning_rate", t->learning_rate, v->optimizer.lr, words);
    }
    if (f->schedule->max_lr) {
        hold("--learning_rate", t->learning_rate, v->scheduler.warmup_max_lr, words);
    }
    hold("--weight_decay", t->weight_decay, v->optimizer.weight_decay, words);
    hold("--adam_beta1", t->adam_beta1, v->optimizer.beta1, words);
    hold("--adam_beta2", t->adam_beta2, v->optimizer.beta2, words);
    hold("--adam_epsilon", t->adam_epsilon, v->optimizer.eps, words);
    if (f->schedule->warmup && t->warmup_steps.known) {
        hold("--warmup_steps", ds_known(fmax(1, t->warmup_steps.value)),
             (double)v->scheduler.warmup_num_steps, words);
    }
}

static void each_flag_holds_or_is_refused(void **state)
{
    const char *cases = getenv("DS_FLAGS_CASES");
    const char *seed = getenv("DS_FLAGS_SEED");
    const uint64_t n = cases != NULL ? strtoull(cases, NULL, 10) : 4000;
    const uint64_t from = seed != NULL ? strtoull(seed, NULL, 10) : 1;
    uint64_t n_held = 0, n_refused = 0, n_batches = 0;
    for (uint64_t i = 0; i < n; ++i) {
        random_state = (from + i) * UINT64_C(0x9e3779b97f4a7c15) + 1;
        const file f = draw_file();
        const ds_trainer_values flags = draw_flags();
        const verdict want = judge_all(&f, &flags);
        text t;
        write_file(&f, &t);
        ds_config *config = NULL;
        ds_status status = ds_config_load_text(*state, "f", t.data, strlen(t.data), NULL, &config);
        /* numbers of the file that do not fit each other are found before any flag */
        if (status >= 0) {
            status = ds_config_resolve(config, f.world, &flags);
        } else if (!want.file_wrong) {
            fail_msg("case %" PRIu64 ": %s: %s", i, t.data, ds_ctx_error(*state));
        }
        if (want.n_refused == 0 && !want.batch_wrong) {
            if (status < 0) {
                fail_msg("case %" PRIu64 ": %s: %s", i, t.data, ds_ctx_error(*state));
            }
            values_hold(config, &f, &flags, &want, t.data);
            ++n_held;
        } else {
            if (status >= 0) {
                fail_msg("case %" PRIu64 ": %s is accepted, %s must be refused", i, t.data,
                         want.n_refused != 0 ? want.refused[0] : "the batch");
            }
            for (size_t k = 0; k < want.n_refused && config != NULL; ++k) {
                if (strstr(ds_ctx_error(*state), want.refused[k]) == NULL) {
                    fail_msg("case %" PRIu64 ": %s: %s is not named: %s", i, t.data,
                             want.refused[k], ds_ctx_error(*state));
                }
            }
            n_batches += want.n_refused == 0;
            n_refused += want.n_refused != 0;
        }
        ds_config_destroy(&config);
    }
    print_message("%" PRIu64 " files: %" PRIu64 " held, %" PRIu64 " refused by flag, %" PRIu64
                  " by the batch sizes alone\n",
                  n, n_held, n_refused, n_batches);
    assert_true(n < 1000 || (n_held > n / 50 && n_refused > n / 10));
}

/* ---- values that no flag may have ------------------------------------------------------------ */

static void numbers_out_of_range_are_refused(void **state)
{
    static const struct {
        ds_trainer_values flags;
        const char *says;
    } cases[] = {
        {{.micro_batch = {true, -1}}, "--micro_batch: expected a whole number of at least 1"},
        {{.micro_batch = {true, 1.5}}, "--micro_batch: expected a whole number"},
        {{.micro_batch = {true, 1e30}}, "--micro_batch: expected a whole number"},
        {{.micro_batch = {true, NAN}}, "--micro_batch: expected a whole number"},
        {{.gradient_accumulation_steps = {true, 0}}, "--gradient_accumulation_steps: expected"},
        {{.learning_rate = {true, -1}}, "--learning_rate: expected a number of at least 0"},
        {{.learning_rate = {true, INFINITY}}, "--learning_rate: expected a number"},
        {{.weight_decay = {true, -0.1}}, "--weight_decay: expected a number of at least 0"},
        {{.adam_beta1 = {true, 1}}, "at least 0 and below 1"},
        {{.adam_beta1 = {true, -0.5}}, "--adam_beta1"},
        {{.adam_epsilon = {true, -1e-8}}, "--adam_epsilon: expected a number of at least 0"},
        {{.warmup_steps = {true, -3}}, "--warmup_steps: expected a whole number"},
        {{.warmup_steps = {true, 2.5}}, "--warmup_steps: expected a whole number"},
    };
    static const char words[] =
        "{train_micro_batch_size_per_gpu: 'auto', optimizer: {type: 'AdamW', "
        "params: {}}, scheduler: {type: 'WarmupLR', params: {}}}";
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        ds_config *config = NULL;
        CHECK_OK(*state, ds_config_load_text(*state, "f", words, sizeof words - 1, NULL, &config));
        CHECK_FAILS(*state, ds_config_resolve(config, 1, &cases[i].flags), DS_ERR_CONFIG,
                    cases[i].says);
        ds_config_destroy(&config);
    }
}

/* The sizes are elasticity's alone: a flag must say the same. */
static void elasticity_and_the_flags(void **state)
{
    static const char words[] = "{elasticity: {enabled: true, max_train_batch_size: 8, "
                                "micro_batch_sizes: [2], version: 0.1}}";
    ds_config *config = NULL;
    CHECK_OK(*state, ds_config_load_text(*state, "f", words, sizeof words - 1, NULL, &config));
    const ds_trainer_values same = {.micro_batch = ds_known(2)};
    CHECK_OK(*state, ds_config_resolve(config, 1, &same));
    const ds_trainer_values other = {.micro_batch = ds_known(3)};
    CHECK_FAILS(*state, ds_config_resolve(config, 1, &other), DS_ERR_CONFIG, "--micro_batch");
    const ds_trainer_values steps = {.gradient_accumulation_steps = ds_known(77)};
    CHECK_FAILS(*state, ds_config_resolve(config, 1, &steps), DS_ERR_CONFIG,
                "--gradient_accumulation_steps");
    ds_config_destroy(&config);
}

static int set_up(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.level = DS_LOG_ERROR;
    params.n_threads = 1;
    return ds_ctx_create(&params, (ds_ctx **)state) < 0;
}

static int tear_down(void **state)
{
    ds_ctx_destroy((ds_ctx **)state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_flag_holds_or_is_refused),
        cmocka_unit_test(numbers_out_of_range_are_refused),
        cmocka_unit_test(elasticity_and_the_flags),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
