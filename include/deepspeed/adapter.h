/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters: small trained weights beside the linear layers of a frozen model, in the folder form of
 * PEFT (adapter_config.json, adapter_model.safetensors).
 *
 *     ds_adapter_params params = {.rank = 8, .alpha = 16};
 *     ds_adapter *adapter;
 *     ds_adapter_create(ctx, &params, &adapter);            or ds_adapter_open(ctx, "folder", …)
 *     ds_engine_params engine = {.model = …, .weights = "model", .adapter = adapter, …};
 *     … train …
 *     ds_engine_save_adapter(engine, "tuned");              PEFT loads it
 *     ds_adapter_merge(ctx, adapter, &(ds_adapter_merge_params){…});
 *
 * A layer y = x·Wᵀ + b becomes y + scale·(dropout(x)·Aᵀ)·Bᵀ; W and b have no gradient. Modules that
 * are saved whole (modules_to_save) are trained as they are.
 *
 * Thread rule: an adapter is const behind its creation; any number of threads may read it.
 */
#ifndef DEEPSPEED_ADAPTER_H
#define DEEPSPEED_ADAPTER_H

#include <deepspeed/model.h>
#include <deepspeed/packing.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_adapter ds_adapter;

typedef enum ds_adapter_method {
    DS_ADAPTER_LORA,   /* scale alpha / rank */
    DS_ADAPTER_RSLORA, /* scale alpha / sqrt(rank) */
    DS_ADAPTER_DORA,   /* scale alpha / rank, and a trained length of each row of W + scale·B·A:
                          Liu et al., "DoRA", 2024 */
    DS_ADAPTER_PISSA,  /* as LORA, beginning as the largest singular values of W, which keeps the
                          rest; saved as plain LoRA of twice the rank, for W as it is stored:
                          Meng et al., "PiSSA", 2024 */
} ds_adapter_method;

typedef struct ds_adapter_params {
    ds_adapter_method method;
    int64_t rank;               /* at least 1 */
    double alpha;               /* default 0: twice the rank */
    double dropout;             /* default 0; below 1: of the input of A, while training */
    const char *const *targets; /* default NULL: every linear layer but the output head. A layer is
                                   meant by its name or by the end of it behind a dot ("q_proj") */
    uint32_t n_targets;
    const char *const *modules_to_save; /* default NULL: modules that are trained and saved whole,
                                           by the end of their names */
    uint32_t n_modules_to_save;
    const char *base; /* default NULL: what the folder says of where the model is from */
    uint32_t task;    /* a ds_task; default TOKENS. With classes, of an encoder, its head for them
                         ("classifier") is one of modules_to_save, as with PEFT */
    bool pairs;       /* default false: of a model of sources and targets (ds_model_info.pairs) */
    DS_RESERVED(7);
} ds_adapter_params;

/* A fresh adapter: A is drawn as PEFT draws it (uniform, ±1/√inputs), from the seed of the engine;
 * B is 0. params are copied. Errors: ERR_ARG naming the field, ERR_NOMEM. */
DS_API ds_status ds_adapter_create(ds_ctx *ctx, const ds_adapter_params *params,
                                   ds_adapter **adapter_out);

/* One that PEFT or ds_engine_save_adapter wrote. Its weights are read by whoever uses it. What
 * adapter_config.json asks for is in force, or the field is the error: ERR_UNSUPPORTED names it.
 * Errors: ERR_NOT_FOUND, ERR_FORMAT, ERR_NOMEM. */
DS_API ds_status ds_adapter_open(ds_ctx *ctx, const char *folder, ds_adapter **adapter_out);

/* The linear layers of the frozen model beside the adapter are held in few bits (packing.h), from
 * which each product unpacks what it needs: QLoRA. Embeddings, norms, biases, the output head,
 * experts and routers stay as they are, as for transformers with bitsandbytes. Call it before the
 * adapter is used; whoever uses the adapter then, engine, plan or generator, packs what it reads
 * from the model's folder. The adapter's own folder says nothing of it, as PEFT's. Errors: ERR_ARG,
 * ERR_UNSUPPORTED (PiSSA).
 * Source: Dettmers et al., "QLoRA", 2023. */
DS_API ds_status ds_adapter_pack_base(ds_adapter *adapter, ds_packing format);

/* Another adapter of the same model, of a folder, is active beside it while it is trained, and
 * stays as it is: PEFT's set_adapter of several, of which the first alone has gradients. What it
 * does is added behind the first, in training with its dropout, as there. It is neither saved with
 * the first nor merged (ds_adapter_combine and ds_adapter_merge take several). Call it before the
 * adapter is used. Errors: those of ds_adapter_open; ERR_UNSUPPORTED naming the field (use_dora,
 * modules_to_save, a task_type that differs). */
DS_API ds_status ds_adapter_add_frozen(ds_adapter *adapter, const char *folder);

/* Several adapters are trained in one run beside one frozen model, each of the tokens that belong
 * to it: batches have a further input `adapters`, i32 (B,T), the number of each token's adapter in
 * this list, or another number: none. What an adapter learns is what it would learn in a run of its
 * own whose other tokens were no targets (PEFT: adapter_names in the forward pass). The rest of the
 * run, the mean of the loss and the norm that clips, is that of all. adapters[0] is what engine or
 * plan gets, and owns the others, which become NULL in the list; ds_engine_save_adapter writes each
 * into the folder of its name. Of linear layers, embeddings and output heads of decoders, without
 * preferences. Call it before the adapter is used, and after ds_adapter_pack_base of the first.
 * Errors: ERR_ARG (n from 2 to 64, names that are no folders or twice there), ERR_UNSUPPORTED
 * naming the field (use_dora, modules_to_save, target_parameters, PiSSA, a task_type of classes or
 * of sources and targets, frozen adapters), ERR_NOMEM. */
DS_API ds_status ds_adapter_train_several(ds_adapter **adapters, const char *const *names,
                                          uint32_t n);

/* The model that the adapter is of: *model itself, or in its place one that ds_model_change makes
 * of it. The vocabulary becomes as long as what the adapter's folder holds of embedding and output
 * head; where modules_to_save means one of the two, or the adapter is on the embedding, and they
 * are tied, each becomes a parameter of its own, as with PEFT. Call it before the model is used
 * with the adapter: by engine, plan, or generator. adapter may be NULL. Errors: those of
 * ds_model_change. */
DS_API ds_status ds_adapter_fit(const ds_adapter *adapter, ds_model **model);

/* What its task_type says, as a ds_task, and how many classes the head in its folder has; 0: none.
 * Errors: those of its weights. */
DS_API ds_status ds_adapter_task(const ds_adapter *adapter, uint32_t *task_out,
                                 uint32_t *n_classes_out);

/* Accepts NULL and *adapter == NULL. */
DS_API void ds_adapter_destroy(ds_adapter **adapter);

typedef struct ds_adapter_merge_params {
    const char *model_folder;        /* the model that it is of; stays as it is */
    const char *folder;              /* to be written, another one; tokenizer files are copied */
    ds_dtype dtype;                  /* default NONE: as the model's weights are stored */
    uint64_t max_shard_bytes;        /* default 0: one file whatever its size */
    const ds_adapter *const *others; /* default NULL: further adapters of the model, which are added
                                        behind the first, one after the other */
    const double *weights; /* default NULL: 1 each; what the scales of the first and of the others
                              are multiplied by */
    uint32_t n_others;
    DS_RESERVED(5);
} ds_adapter_merge_params;

/* Writes the model folder that the adapter makes of another: W + scale·B·A in fp32, rounded once.
 * adapter: opened from a folder. With others: what PEFT's merge_and_unload makes of several active
 * adapters (DoRA scales what those in front of it have made), but rounded once. What the
 * model's folder has in few bits, FP8 and the like, is written as real numbers: of `dtype`, or
 * bf16 (fp16 where its scales are). Errors: ERR_ARG, ERR_UNSUPPORTED naming the field (two that
 * trained one module of modules_to_save; a weight beside DoRA or modules_to_save), those of folders
 * and of adapters that do not fit the model. */
DS_API ds_status ds_adapter_merge(ds_ctx *ctx, const ds_adapter *adapter,
                                  const ds_adapter_merge_params *params);

typedef enum ds_adapter_combination {
    DS_ADAPTER_LINEAR, /* A and B are weighted sums of those of the adapters, by the roots of
                          weight times scale: PEFT's "linear", which is a rough approximation of the
                          sum of what the adapters do */
    DS_ADAPTER_CAT,    /* A and B stand side by side: the weighted sum of what the adapters do; the
                          rank is the sum of theirs */
    DS_ADAPTER_SVD,    /* the largest singular values of that sum, in B with their vectors: PEFT's
                          "svd" without a clamp */
    /* Sums of A and of B as LINEAR, of matrices of which `density` of the elements stay, the others
       become 0: */
    DS_ADAPTER_TIES,            /* the largest stay; of each element those of the sign that most
                                   have (`majority`), and their mean in place of the sum: Yadav et
                                   al., "TIES-Merging", 2023 */
    DS_ADAPTER_DARE_LINEAR,     /* any stay, and are divided by the density: Yu et al., "Language
                                   Models are Super Mario", 2023 */
    DS_ADAPTER_DARE_TIES,       /* any stay, divided so; then signs and means as TIES */
    DS_ADAPTER_MAGNITUDE_PRUNE, /* the largest stay */
} ds_adapter_combination;

/* Which sign an element of DS_ADAPTER_TIES and DARE_TIES gets; none below 0: plus. */
typedef enum ds_adapter_majority {
    DS_MAJORITY_TOTAL,    /* that of the sum */
    DS_MAJORITY_FREQUENCY /* that of more adapters */
} ds_adapter_majority;

typedef struct ds_adapter_combine_params {
    const ds_adapter *const *adapters; /* opened from folders; of one model */
    uint32_t n_adapters;               /* at least 1 */
    const double *weights;             /* default NULL: 1 each; negative ones take away */
    ds_adapter_combination combination;
    const char *folder; /* to be written, another one */
    int64_t rank;       /* of DS_ADAPTER_SVD; default 0: the largest of the adapters' */
    double density;    /* of TIES, DARE_… and MAGNITUDE_PRUNE, needed there: above 0, 1 at most */
    uint64_t majority; /* of TIES and DARE_TIES: a ds_adapter_majority, default TOTAL */
    uint64_t seed; /* of DARE_…: which elements stay is a function of it, of the tensor's name,
                      of the adapter's place and of the element */
    DS_RESERVED(4);
} ds_adapter_combine_params;

/* Writes a folder with one adapter that several make: PEFT's add_weighted_adapter, by lists of
 * target_modules (those of all), in fp32. Its alpha is its rank, so that its scale is 1. A module
 * that some adapters are not on gets what the others have. Errors: ERR_ARG, ERR_SHAPE (ranks that
 * differ, but in CAT and SVD), ERR_UNSUPPORTED naming the field (DoRA, target_parameters,
 * modules_to_save, layers that differ), those of folders. Source: PEFT 0.21,
 * tuners/lora/model.py. */
DS_API ds_status ds_adapter_combine(ds_ctx *ctx, const ds_adapter_combine_params *params);

/* What it is, as one line. The caller frees *text_out. Errors: ERR_NOMEM. */
DS_API ds_status ds_adapter_print(const ds_adapter *adapter, char **text_out);

#ifdef __cplusplus
}
#endif
#endif
