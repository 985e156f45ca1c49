/* SPDX-License-Identifier: Apache-2.0 */
/* Text generation: prefill and decode plans over KV cells, on the same operators as training.
 *
 *     ds_generator_create(ctx, &params, &generator);
 *     ds_generator_prompt(generator, ids, n);
 *     while (ds_generator_next(generator, &sampling, &id) == DS_OK && !stop(id)) …
 *
 * or from a live engine, without saving and loading:
 *
 *     ds_generator_params params = {.engine = engine};
 *     ds_generator_create(ctx, &params, &generator);
 *     … train … ds_generator_update(generator); ds_generator_prompt(…);
 *
 * with `share` not even a copy is made of what the engine holds whole.
 *
 * One sequence at a time. Nothing is allocated after creation. One thread calls a generator.
 */
#ifndef DEEPSPEED_INFER_H
#define DEEPSPEED_INFER_H

#include <deepspeed/engine.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_generator ds_generator;

typedef struct ds_generator_params {
    const ds_model *model; /* borrowed, must outlive the generator; with `engine` NULL: its own */
    const char *weights; /* model folder with *.safetensors; weights of the plan's dtype are mapped,
                            not read */
    const char *checkpoint; /* default NULL; a training checkpoint's folder instead of `weights` */
    ds_engine *engine;  /* default NULL; a live engine instead of both: a copy of its parameters as
                           they are now. Borrowed, must outlive the generator. Creation is then
                           collective: every rank of the engine makes a generator, with one dtype */
    const char *tag;    /* default NULL: the checkpoint named by `latest` */
    ds_dtype dtype;     /* default NONE: that of the stored weights, or of the engine */
    int64_t max_length; /* most positions, prompt included; default 0: of an engine with
                           hybrid_engine.enabled its max_out_tokens, else the model's */
    const char *accelerator; /* default NULL: the best that there is, or that of `engine`; else as
                                in ds_engine_params */
    ds_comm *comm; /* default NULL; else its ranks share the layers (tensor parallelism), found as
                      in training: each has a part of the weights and of keys and values. Borrowed.
                      Creation is then collective; rank 0's generator is used as one of a single
                      rank is, with its max_length and dtype, and the others call
                      ds_generator_follow. Not with `engine` */
    const ds_adapter *adapter; /* default NULL; one that was opened from a folder, beside `weights`.
                                  Borrowed, must outlive the generator. An engine's own is there
                                  anyway */
    /* Default NONE; q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k or q6_k: matrices of linear layers,
     * and an output projection that is no embedding, are rounded to it as they are read, where
     * their rows are whole blocks; where those of K types are whole blocks of 32 alone, to q5_0,
     * q5_1 or q8_0 in their place. An embedding that is the output projection, too: to q8_0. Beside
     * `weights` alone, without adapter and stages; ranks of comm cut them between blocks. Products
     * then round what they read to bytes, too. */
    ds_dtype quantize;
    const char *gguf; /* default NULL; the file that ds_gguf_to_folder made `weights` of. Alone:
                         each of these matrices has the type that it has there, block by block as
                         it is; those in types without a product are real numbers. Beside
                         `quantize`: matrices that are in that type are taken as they are, the
                         others rounded. Mapped until the weights are read */
    uint32_t stages;  /* default 0: 1; else the layers are dealt to so many groups of the ranks of
                         `comm`, neighbouring ones to each, and its ranks share them within a stage:
                         a divisor of their number. The logits are those of one stage, bit for bit */
    bool share; /* default: as hybrid_engine.enabled of `engine`; true: parameters are not copied
                   where the engine has them whole in this process's memory, in the generator's
                   dtype: what it trains is what is read. The others are copied, as without. The
                   engine's steps make the generator ERR_STATE until ds_generator_update
                   (ds_serve_update), which then copies only the latter; behind ds_engine_set and
                   ds_engine_load_checkpoint call it, too. Source: DeepSpeed's hybrid engine
                   (runtime/hybrid_engine.py) */
    bool offload_kv; /* default false; true, of a server: keys and values are where `config` says of
                        weights, too: all of a layer's come and go in every step */
    bool keep_blocks; /* default false; true: matrices that `weights` has in four or eight bits
                         (GPTQ, AWQ, packed compressed-tensors) stay in blocks of Q4_0, Q5_0 or Q8_0
                         where those are the same values; others are real numbers, as without. Not
                         beside quantize, gguf, adapter and stages */
    /* Default NULL; a resolved training configuration: weights are on disk, or in host memory of
     * another device, as its zero_optimization.offload_param says (device, nvme_path, max_in_cpu,
     * buffer_count, buffer_size; param_persistence_threshold, prefetch_bucket_size,
     * max_live_parameters and max_reuse_distance beside it; aio), and come to memory ahead of their
     * use in every run; nothing else of it is in force. An nvme_path that is `weights` itself:
     * those that lie there as they are used are read in place. No bit changes. Beside `weights` or
     * `checkpoint`; borrowed for the call. Source: DeepSpeed's ZeRO-Inference */
    const ds_config *config;
    DS_RESERVED(1);
} ds_generator_params;

/* Sets what a resolved configuration says of `params`, which has a model, and a comm where ranks
 * share the layers: of DeepSpeed's inference engines and MII (config.h) dtype, quantize,
 * max_length, config and weights (a checkpoint of it), those fields that it speaks of; of training
 * `config`. What is set is borrowed from the configuration. Errors: ERR_ARG (not resolved for the
 * ranks of comm), ERR_CONFIG and ERR_LIMIT where the model is not what the file says. */
DS_API ds_status ds_generator_configure(ds_ctx *ctx, const ds_config *config,
                                        ds_generator_params *params);
/* Of such params, and the model's folder: writes the copy of the weights that
 * save_mp_checkpoint_path asks for, on rank 0: a model folder of real weights in params' dtype.
 * Nothing where the file does not ask. Errors: those of ds_hf_export; ERR_UNSUPPORTED (weights that
 * are quantized already); ERR_ARG (a folder that is read from, or with weights of another kind). */
DS_API ds_status ds_generator_copy(ds_ctx *ctx, const ds_config *config,
                                   const ds_generator_params *params, const char *model_folder);
/* Builds plans, memory and weights. Errors: those of models and folders; ERR_NOMEM names bytes;
 * ERR_ARG (not one of weights, checkpoint and engine; another model than the engine's; an adapter
 * without a folder, or beside something else than weights). */
DS_API ds_status ds_generator_create(ds_ctx *ctx, const ds_generator_params *params,
                                     ds_generator **generator_out);
DS_API void ds_generator_destroy(ds_generator **generator);
/* On the ranks above 0 of params.comm: runs what rank 0's generator runs, until that is destroyed.
 * Errors: ERR_STATE (on rank 0, or without comm), ERR_PEER when rank 0 is gone. */
DS_API ds_status ds_generator_follow(ds_generator *generator);
/* Of a live engine: takes its parameters over again, after it has trained on. The sequence is
 * forgotten: give a prompt. Collective. Allocates room for one parameter meanwhile. After an error
 * the weights are neither old nor new: update again, or destroy. Errors: ERR_STATE (no engine, or
 * its states are lost), ERR_PEER, ERR_NUMERIC (a value beyond the dtype's range), ERR_NOMEM. */
DS_API ds_status ds_generator_update(ds_generator *generator);

/* Starts a new sequence with n >= 1 prompt ids. Errors: ERR_LIMIT past max_length, ERR_ARG on an id
 * outside of the vocabulary. */
DS_API ds_status ds_generator_prompt(ds_generator *generator, const uint32_t *ids, size_t n);

/* The same, but what these ids have in common with the sequence at its begin is not run again: its
 * keys and values are kept. The logits have the bits of ds_generator_prompt; so that they do, ids
 * that steps appended are run again where steps and prompts round otherwise (bf16 on processors
 * with products of bf16 pairs), and everything is where rotary positions depend on the length. For
 * the turns of a conversation. kept_out may be NULL: how many ids were kept, at most n - 1. */
DS_API ds_status ds_generator_prompt_on(ds_generator *generator, const uint32_t *ids, size_t n,
                                        size_t *kept_out);

/* How an id is drawn from the logits. All zero is greedy. */
typedef struct ds_sampling {
    double temperature; /* <= 0: greedy, the largest logit, the lowest id among equals */
    int64_t top_k;      /* 0: all; below 0 an error, and so for top_p */
    double top_p;       /* 0 or >= 1: all; smallest set of ids whose probability reaches it */
    uint64_t seed;
    double min_p;     /* 0: all; ids less likely than min_p times the likeliest are left out, after
                         top_k and top_p */
    double typical_p; /* 0 or >= 1: all; after the others, the ids whose surprise is closest to the
                         mean one, as many as reach this probability */
    /* 1 or 2, and with a temperature: mirostat in the place of all these: as many of the likeliest
     * ids as keep the mean surprise of a text, in bits, at tau; eta is how fast it learns */
    int64_t mirostat;
    double tau, eta;
    DS_RESERVED(3);
} ds_sampling;

/* Draws the next id and appends it to the sequence. Errors: ERR_LIMIT at max_length (nothing is
 * appended), ERR_STATE without a prompt, ERR_NUMERIC when the logits are not finite. */
DS_API ds_status ds_generator_next(ds_generator *generator, const ds_sampling *sampling,
                                   uint32_t *id_out);

/* Logits (V) behind the newest id, f32, borrowed until the next call. */
DS_API const float *ds_generator_logits(const ds_generator *generator, int64_t *n_out);
DS_API int64_t ds_generator_length(const ds_generator *generator);
DS_API int64_t ds_generator_max_length(const ds_generator *generator);
DS_API ds_dtype ds_generator_dtype(const ds_generator *generator);
/* Bytes that one decode step must read at least: weights and the full KV cells. */
DS_API double ds_generator_step_bytes(const ds_generator *generator);

#ifdef __cplusplus
}
#endif
#endif
