/* SPDX-License-Identifier: Apache-2.0 */
/* "auto", and values of the trainer: as Hugging Face's Trainer resolves them (transformers,
 * integrations/deepspeed.py, HfTrainerDeepSpeedConfig; training_args.py for what it takes where no
 * flag is given).
 *
 * A flag is in force or the file is refused: a value that is "auto", or that the file leaves out,
 * is the flag's; a number in the file must equal it; a flag that no key here can take is an error
 * (config_auto_flags.c), where the Trainer drops it. Without the flag "auto" follows from a number
 * beside it (batch sizes, learning rates) or is the Trainer's default, with a notice. Only the
 * number of steps has no default: its flag is asked for by name.
 */
#include "config/config_eval.h"

#include <math.h>
#include <string.h>
#include <strings.h>

/* One key, its flag, where the trainer's value is, and the Trainer's default (NAN: none). */
typedef struct auto_rule {
    const char *path;
    const char *flag;
    size_t offset; /* in ds_trainer_values */
    double usual;
} auto_rule;

#define TRAINER_FIELD(name) offsetof(ds_trainer_values, name)

static const auto_rule simple_rules[] = {
    {"train_micro_batch_size_per_gpu", "--micro_batch", TRAINER_FIELD(micro_batch), 8},
    {"gradient_accumulation_steps", "--gradient_accumulation_steps",
     TRAINER_FIELD(gradient_accumulation_steps), 1},
    {"gradient_clipping", "--max_grad_norm", TRAINER_FIELD(max_grad_norm), 1.0},
    {"optimizer.params.lr", "--learning_rate", TRAINER_FIELD(learning_rate), 5e-5},
    {"optimizer.params.eps", "--adam_epsilon", TRAINER_FIELD(adam_epsilon), 1e-8},
    {"optimizer.params.weight_decay", "--weight_decay", TRAINER_FIELD(weight_decay), 0.0},
    {"scheduler.params.warmup_max_lr", "--learning_rate", TRAINER_FIELD(learning_rate), 5e-5},
    {"scheduler.params.total_num_steps", "--steps", TRAINER_FIELD(total_steps), NAN},
};

static ds_maybe trainer_value(const dsi_eval *eval, size_t offset)
{
    ds_maybe value;
    memcpy(&value, (const char *)eval->trainer + offset, sizeof value);
    return value;
}

/* The trainer's number as the row's type; NULL: the row does not take it. */
static const dsi_node *make_value(dsi_eval *eval, const dsi_option *option, double value)
{
    if (option->type == DSI_OPT_BOOL) {
        return dsi_node_make_bool(eval->arena, value != 0);
    }
    const dsi_node *given = dsi_node_make_real(eval->arena, value);
    eval->no_memory = eval->no_memory || given == NULL;
    return given != NULL ? dsi_option_value(eval, option, given) : NULL;
}

static void wrong_flag(dsi_eval *eval, const dsi_option *option, double value, const char *flag)
{
    dsi_option bare = *option;
    dsi_buf buf = dsi_buf_make(1024);
    bare.flags &= DSI_OPT_ABOVE_MIN; /* a flag is a number */
    dsi_option_expected(&buf, &bare);
    dsi_item_error(eval, NULL, "%s: expected %s, found %.17g", flag, dsi_buf_text(&buf), value);
    dsi_buf_free(&buf);
}

static void fill(dsi_eval *eval, dsi_item *item, const dsi_node *node, const char *detail)
{
    dsi_item_set(eval, item, node, DS_ORIGIN_AUTO, detail);
}

static void missing(dsi_eval *eval, const dsi_item *item, const char *flag)
{
    dsi_item_error(eval, item,
                   "expected a value for \"auto\", found none; give %s, or write a "
                   "value here",
                   flag);
}

void dsi_config_say_usual(dsi_eval *eval, const char *flag, const char *value)
{
    dsi_buf *said = &eval->usual;
    if (said->data == NULL || strstr(dsi_buf_text(said), flag) == NULL) { /* of two keys: once */
        dsi_buf_printf(said, "%s%s %s", said->size > 0 ? ", " : "", flag, value);
    }
}

static void take_usual(dsi_eval *eval, dsi_item *item, const dsi_node *usual, const char *flag)
{
    dsi_buf buf = dsi_buf_make(512);
    dsi_node_json(&buf, usual);
    fill(eval, item, usual, "the Trainer's default");
    dsi_config_say_usual(eval, flag, dsi_buf_text(&buf));
    dsi_buf_free(&buf);
}

/* One line for all that neither the file nor a flag says. */
static void say_usual(dsi_eval *eval)
{
    if (eval->usual.size > 0 && !eval->for_plan) {
        dsi_item_notice(eval, NULL, "not given, and so the Trainer's defaults: %s",
                        dsi_buf_text(&eval->usual));
    }
}

static void check_match(dsi_eval *eval, const dsi_item *item, const dsi_node *trainer,
                        const char *flag)
{
    if (item->node == NULL || dsi_node_equal(item->node, trainer)) {
        return;
    }
    dsi_buf buf = dsi_buf_make(512);
    dsi_node_json(&buf, item->node);
    dsi_buf_puts(&buf, " here, ");
    dsi_node_json(&buf, trainer);
    dsi_item_error(eval, item,
                   "the file and the flag %s disagree: %s by the flag; drop the flag, "
                   "or write \"auto\" here",
                   flag, dsi_buf_text(&buf));
    dsi_buf_free(&buf);
}

/* `trainer` (NULL: no flag) is the value, unless the file has one, which must be the same; else
 * `usual` (NULL: none) is that of an open item. */
static void resolve_item(dsi_eval *eval, dsi_item *item, const dsi_node *trainer,
                         const dsi_node *usual, const char *flag)
{
    if (item == NULL) {
        return;
    }
    if (dsi_item_given(item) && trainer != NULL) {
        check_match(eval, item, trainer, flag);
    } else if (trainer != NULL) {
        fill(eval, item, trainer, flag);
    } else if (item->open && usual != NULL) {
        take_usual(eval, item, usual, flag);
    } else if (item->open) {
        missing(eval, item, flag);
    }
}

/* A flag that fills two keys is checked with the first that is there. */
static bool is_first_of_flag(const dsi_eval *eval, const auto_rule *rule)
{
    for (const auto_rule *r = simple_rules; r < rule; ++r) {
        if (r->offset == rule->offset && dsi_item_find(eval, r->path) != NULL) {
            return false;
        }
    }
    return true;
}

static void settle_simple(dsi_eval *eval, const auto_rule *rule)
{
    dsi_item *item = dsi_item_find(eval, rule->path);
    const ds_maybe value = trainer_value(eval, rule->offset);
    if (item == NULL) {
        return;
    }
    const dsi_node *trainer = value.known ? make_value(eval, item->option, value.value) : NULL;
    if (value.known && trainer == NULL) {
        item->open = false;
        if (is_first_of_flag(eval, rule)) {
            wrong_flag(eval, item->option, value.value, rule->flag);
        }
        return;
    }
    resolve_item(eval, item, trainer,
                 isnan(rule->usual) ? NULL : make_value(eval, item->option, rule->usual),
                 rule->flag);
}

/* Beside a given train_batch_size the other two are derived from it; see config_batch.c. */
static void follow_batch(dsi_eval *eval)
{
    static const char *const paths[] = {"train_micro_batch_size_per_gpu",
                                        "gradient_accumulation_steps"};
    const ds_maybe known[] = {eval->trainer->micro_batch,
                              eval->trainer->gradient_accumulation_steps};
    for (size_t i = 0; i < 2 && dsi_item_given(dsi_item_find(eval, "train_batch_size")); ++i) {
        dsi_item *item = dsi_item_find(eval, paths[i]);
        if (item != NULL && item->open && !known[i].known) {
            fill(eval, item, dsi_node_make(eval->arena, DSI_NODE_NULL), "the other batch sizes");
        }
    }
}

/* A file that says nothing of batches gets the Trainer's micro-batch, where its sections are
 * filled. */
static void usual_batch(dsi_eval *eval)
{
    dsi_item *micro = dsi_item_find(eval, "train_micro_batch_size_per_gpu");
    const bool elastic = dsi_item_true(eval, "elasticity.enabled");
    if (eval->trainer->fill_sections && !elastic && micro != NULL && !dsi_item_given(micro) &&
        !dsi_item_given(dsi_item_find(eval, "train_batch_size"))) {
        micro->open = true;
    }
}

/* Without the flag the optimizer's rate and the schedule's highest one are the same. */
static void follow_rate(dsi_eval *eval, const char *path, const char *other_path)
{
    dsi_item *item = dsi_item_find(eval, path);
    const dsi_item *other = dsi_item_find(eval, other_path);
    if (item != NULL && item->open && !eval->trainer->learning_rate.known &&
        dsi_item_given(other)) {
        fill(eval, item, other->node, other_path);
    }
}

/* One precision asked for says that the other is off. Where the file says nothing of it a precision
 * is its flag's: a file without fp16 and bf16 leaves the choice to the flags (as Accelerate does,
 * DeepSpeedPlugin.set_mixed_precision). */
static void settle_precision(dsi_eval *eval, const char *path, ds_maybe own, const char *flag,
                             ds_maybe other, const char *other_flag)
{
    dsi_item *item = dsi_item_find(eval, path);
    if (item == NULL) {
        return;
    }
    if (!own.known && other.known && other.value != 0) {
        own = ds_known(0);
        flag = other_flag;
    }
    resolve_item(eval, item, own.known ? make_value(eval, item->option, own.value) : NULL,
                 dsi_node_make_bool(eval->arena, false), flag);
}

/* The number that a flag gives for list element `index` of betas; where it gives none, that of the
 * file, else the default of both Trainer and table. */
static double beta_or(ds_maybe flag, const dsi_item *item, uint32_t index, double usual)
{
    const dsi_node *node =
        dsi_item_given(item) && item->node->kind == DSI_NODE_LIST ? item->node->first : NULL;
    for (uint32_t i = 0; i < index && node != NULL; ++i) {
        node = node->next;
    }
    return flag.known ? flag.value : node != NULL ? dsi_node_real(node) : usual;
}

/* Of AdEMAMix three numbers, the third as the file has it. */
static dsi_node *make_betas(dsi_eval *eval, const dsi_item *item, double first, double second)
{
    const char *type = dsi_item_text(eval, "optimizer.type");
    const bool three = type != NULL && strcasecmp(type, "ademamix") == 0;
    const double values[3] = {first, second, beta_or((ds_maybe){0}, item, 2, 0.9999)};
    dsi_node *list = dsi_node_make(eval->arena, DSI_NODE_LIST);
    for (int i = 0; i < (three ? 3 : 2); ++i) {
        dsi_node *value = dsi_node_make_real(eval->arena, values[i]);
        if (list == NULL || value == NULL) {
            eval->no_memory = true;
            return NULL;
        }
        dsi_node_add(list, value);
    }
    return list;
}

/* Each flag is one of the pair. */
static void settle_betas(dsi_eval *eval)
{
    const ds_trainer_values *t = eval->trainer;
    const bool both = t->adam_beta1.known && t->adam_beta2.known;
    const char *flag = both                  ? "--adam_beta1 and --adam_beta2"
                       : t->adam_beta1.known ? "--adam_beta1"
                                             : "--adam_beta2";
    dsi_item *item = dsi_item_find(eval, "optimizer.params.betas");
    if (item == NULL) {
        return;
    }
    const dsi_node *usual = make_betas(eval, item, 0.9, 0.999);
    if (eval->no_memory) {
        return;
    }
    if (!t->adam_beta1.known && !t->adam_beta2.known) {
        resolve_item(eval, item, NULL, usual, "--adam_beta1 and --adam_beta2");
        return;
    }
    const double first = beta_or(t->adam_beta1, item, 0, 0.9);
    const double second = beta_or(t->adam_beta2, item, 1, 0.999);
    if (!(first >= 0 && first < 1 && second >= 0 && second < 1)) {
        dsi_item_error(eval, item,
                       "%s: expected two numbers of at least 0 and below 1, found [%g, %g]", flag,
                       first, second);
        item->open = false;
        return;
    }
    resolve_item(eval, item, make_betas(eval, item, first, second), usual, flag);
}

/* Updates of the warm-up that a flag gives: a number, or a part of all updates, rounded up as
 * TrainingArguments.get_warmup_steps does. *flag_out names the flag. */
static ds_maybe warmup_of_flags(dsi_eval *eval, const char **flag_out)
{
    const ds_trainer_values *t = eval->trainer;
    const bool by_steps = t->warmup_steps.known && t->warmup_steps.value != 0;
    const bool part = by_steps && t->warmup_steps.value > 0 && t->warmup_steps.value < 1;
    ds_maybe ratio = part ? t->warmup_steps : t->warmup_ratio;
    *flag_out = by_steps || !t->warmup_ratio.known ? "--warmup_steps" : "--warmup_ratio";
    if (by_steps && t->warmup_ratio.known && t->warmup_ratio.value != 0) {
        dsi_item_error(eval, NULL, "--warmup_steps and --warmup_ratio are both given; drop one");
    }
    if ((by_steps && !part) || !ratio.known) {
        return t->warmup_steps;
    }
    const int64_t own = dsi_item_int(eval, "scheduler.params.total_num_steps", 0);
    const double total = own > 0 ? (double)own : t->total_steps.value;
    if (!(ratio.value >= 0 && ratio.value <= 1)) {
        dsi_item_error(eval, NULL, "%s: expected a part from 0 to 1, found %.17g", *flag_out,
                       ratio.value);
    } else if (own <= 0 && !t->total_steps.known && ratio.value != 0) {
        dsi_item_error(eval, NULL, "%s is a part of all updates: give their number, --steps",
                       *flag_out);
    } else {
        return ds_known(ceil(total * ratio.value));
    }
    return (ds_maybe){0};
}

/* DeepSpeed's schedules refuse a warm-up of 0; 1 is the least there, as the Trainer passes it. */
static void settle_warmup(dsi_eval *eval)
{
    const char *flag = "--warmup_steps";
    const ds_maybe steps = warmup_of_flags(eval, &flag);
    dsi_item *item = dsi_item_find(eval, "scheduler.params.warmup_num_steps");
    item = item != NULL ? item : dsi_item_find(eval, "optimizer.params.warmup_steps");
    if (item != NULL) {
        const double least = item->option->min;
        const double count = steps.value == 0 ? least : steps.value;
        const dsi_node *trainer = steps.known ? make_value(eval, item->option, count) : NULL;
        if (steps.known && trainer == NULL) {
            item->open = false;
            wrong_flag(eval, item->option, steps.value, flag);
        } else {
            resolve_item(eval, item, trainer, dsi_node_make_int(eval->arena, (int64_t)least), flag);
        }
    }
    dsi_item *least = dsi_item_find(eval, "scheduler.params.warmup_min_lr");
    if (least != NULL && least->open) {
        fill(eval, least, dsi_node_make_int(eval->arena, 0), "0");
    }
}

/* "auto" is then derived from the other two; see config_batch.c. */
static void settle_train_batch(dsi_eval *eval)
{
    dsi_item *item = dsi_item_find(eval, "train_batch_size");
    if (item != NULL && item->open) {
        fill(eval, item, dsi_node_make(eval->arena, DSI_NODE_NULL), "the other batch sizes");
    }
}

static void settle_hidden(dsi_eval *eval, const char *path, double factor, bool squared, bool fills)
{
    dsi_item *item = dsi_item_find(eval, path);
    const ds_maybe hidden = eval->trainer->hidden_size;
    if (item == NULL || !item->open) {
        return;
    }
    if (!fills) { /* as DeepSpeed: "auto" is the default in stages that do not read the key */
        fill(eval, item, item->node, "default");
    } else if (!hidden.known) {
        missing(eval, item, "the model's hidden size (a model, or --hidden_size)");
    } else {
        const double value = factor * hidden.value * (squared ? hidden.value : 1);
        fill(eval, item, dsi_node_make_int(eval->arena, (int64_t)value), "the model's hidden size");
    }
}

void dsi_config_auto(dsi_eval *eval)
{
    if (eval->world_size == 0) {
        return;
    }
    dsi_config_sections_origin(eval);
    usual_batch(eval);
    follow_batch(eval);
    follow_rate(eval, "optimizer.params.lr", "scheduler.params.warmup_max_lr");
    follow_rate(eval, "scheduler.params.warmup_max_lr", "optimizer.params.lr");
    for (size_t i = 0; i < sizeof simple_rules / sizeof simple_rules[0]; ++i) {
        settle_simple(eval, &simple_rules[i]);
    }
    const ds_maybe fp16 = eval->trainer->fp16;
    const ds_maybe bf16 = eval->trainer->bf16;
    settle_precision(eval, "fp16.enabled", fp16, "--fp16", bf16, "--bf16");
    settle_precision(eval, "bf16.enabled", bf16, "--bf16", fp16, "--fp16");
    settle_betas(eval);
    settle_warmup(eval);
    dsi_config_auto_flags(eval);
    dsi_config_sections_flags(eval);
    say_usual(eval);
    settle_train_batch(eval);
    int64_t stage = 0;
    const dsi_item *stage_item = dsi_item_find(eval, "zero_optimization.stage");
    if (stage_item != NULL) {
        (void)dsi_node_int(stage_item->node, &stage);
    }
    settle_hidden(eval, "zero_optimization.reduce_bucket_size", 1, true, true);
    settle_hidden(eval, "zero_optimization.prefetch_bucket_size", 0.9, true, stage == 3);
    settle_hidden(eval, "zero_optimization.param_persistence_threshold", 10, false, stage == 3);
}
