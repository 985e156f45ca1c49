/* SPDX-License-Identifier: Apache-2.0 */
/* ds_train's part of preference training: the reference before the first step, batches, and what
 * is logged, by TRL's names. See train.h. */
#include "base/clock.h"
#include "common/train.h"

#include <stdio.h>
#include <string.h>

bool train_has_preference(const train_run *run)
{
    return run->preference.loss != DS_PREFERENCE_NONE;
}

/* Before the checkpoint of a resumed run is loaded: the reference is the model of the start. */
ds_status train_preference_reference(train_run *run)
{
    const train_datasets *const sets[] = {&run->train_data, &run->eval_data};
    const double start = dsi_clock_seconds();
    uint64_t n = 0;
    uint64_t n_cached = 0;
    if (!train_has_preference(run) || !ds_preference_has_reference(&run->preference)) {
        return DS_OK;
    }
    for (size_t s = 0; s < 2; ++s) {
        for (uint32_t i = 0; i < sets[s]->n; ++i) {
            bool cached = false;
            if (ds_dataset_has_reference(sets[s]->items[i])) { /* as columns */
                continue;
            }
            DS_TRY(train_reference(run, sets[s]->items[i], &cached));
            n += ds_dataset_n_draws(sets[s]->items[i]);
            n_cached += cached ? ds_dataset_n_draws(sets[s]->items[i]) : 0;
        }
    }
    if (n > 0 && ds_comm_rank(run->comm) == 0) {
        char cached[64] = "";
        if (n_cached > 0) {
            (void)snprintf(cached, sizeof cached, ", %llu of them from the data cache",
                           (unsigned long long)n_cached);
        }
        ds_log(run->ctx, DS_LOG_JOB,
               "reference: log-probabilities of %llu samples by the model of the start%s, %.1f s",
               (unsigned long long)n, cached, dsi_clock_seconds() - start);
    }
    return DS_OK;
}

ds_status train_preference_add(train_run *run, bool evaluated, double *tokens,
                               ds_preference_sums *out)
{
    ds_preference_sums s = ds_engine_preference_sums(run->engine, evaluated);
    double all[] = {*tokens,
                    s.rewards_chosen,
                    s.rewards_rejected,
                    s.accuracies,
                    s.margins,
                    s.logps_chosen,
                    s.logps_rejected,
                    s.n_chosen,
                    s.n_rejected,
                    s.nll,
                    s.log_odds,
                    s.kl};
    DS_TRY(ds_comm_sum(ds_engine_data_comm(run->engine), all,
                       train_has_preference(run) ? sizeof all / sizeof all[0] : 1));
    *tokens = all[0];
    *out = (ds_preference_sums){.rewards_chosen = all[1],
                                .rewards_rejected = all[2],
                                .accuracies = all[3],
                                .margins = all[4],
                                .logps_chosen = all[5],
                                .logps_rejected = all[6],
                                .n_chosen = all[7],
                                .n_rejected = all[8],
                                .nll = all[9],
                                .log_odds = all[10],
                                .kl = all[11]};
    return DS_OK;
}

static void put(train_metric *out, size_t *n, const char *name, double sum, double count)
{
    if (count > 0.0) {
        out[(*n)++] = (train_metric){name, sum / count};
    }
}

/* TRL's names; of a reward model those of RewardTrainer. */
size_t train_preference_metrics(const train_run *run, const ds_preference_sums *s,
                                train_metric out[TRAIN_METRICS])
{
    const ds_preference_loss loss = run->preference.loss;
    size_t n = 0;
    if (!train_has_preference(run)) {
        return 0;
    }
    if (loss == DS_PREFERENCE_REWARD) {
        put(out, &n, "accuracy", s->accuracies, s->n_chosen);
        put(out, &n, "margin", s->margins, s->n_chosen);
        put(out, &n, "mean_reward", s->rewards_chosen + s->rewards_rejected, 2.0 * s->n_chosen);
        return n;
    }
    const double margins =
        s->n_chosen > 0.0 && s->n_rejected > 0.0
            ? s->rewards_chosen / s->n_chosen - s->rewards_rejected / s->n_rejected
            : 0.0;
    if (ds_preference_is_paired(loss)) {
        put(out, &n, "rewards/accuracies", s->accuracies, s->n_chosen);
        put(out, &n, "rewards/margins", s->margins, s->n_chosen);
    } else {
        put(out, &n, "rewards/margins", margins, s->n_chosen > 0.0 && s->n_rejected > 0.0);
    }
    put(out, &n, "rewards/chosen", s->rewards_chosen, s->n_chosen);
    put(out, &n, "rewards/rejected", s->rewards_rejected, s->n_rejected);
    put(out, &n, "logps/chosen", s->logps_chosen, s->n_chosen);
    put(out, &n, "logps/rejected", s->logps_rejected, s->n_rejected);
    if (loss == DS_PREFERENCE_ORPO) {
        put(out, &n, "nll_loss", s->nll, s->n_chosen);
        put(out, &n, "log_odds_chosen", s->log_odds, s->n_chosen);
    } else if (loss == DS_PREFERENCE_KTO) {
        put(out, &n, "kl", s->kl, s->n_chosen + s->n_rejected);
    }
    return n;
}

void train_preference_text(const train_run *run, const ds_preference_sums *s, char *text, size_t n)
{
    train_metric all[TRAIN_METRICS];
    const size_t count = train_preference_metrics(run, s, all);
    size_t at = 0;
    text[0] = '\0';
    for (size_t i = 0; i < count && i < 2 && at < n; ++i) { /* accuracy and margin; the rest is in
                                                               the metrics */
        const char *slash = strchr(all[i].name, '/');
        const int put_now = snprintf(text + at, n - at, "  %s %.3f",
                                     slash != NULL ? slash + 1 : all[i].name, all[i].value);
        at += put_now > 0 ? (size_t)put_now : 0;
    }
}
