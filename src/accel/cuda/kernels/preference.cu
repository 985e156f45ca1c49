/* SPDX-License-Identifier: Apache-2.0 */
/* preference and its gradient: a block sums a row, one thread goes over the pairs, a block writes a
 * row of the gradient. All in fp64 up to the store: log-ratios are small differences of large sums.
 * The formulas, and their derivatives by the two log-ratios of a pair: deepspeed/preference.h. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/preference_loss.h"

enum { IGNORED = -100 };

DSC_INLINE void preference_rows_all(const dsc_preference_args *a)
{
    __shared__ dsc_row_sum all[DSC_PREFERENCE_THREADS];
    for (int64_t row = blockIdx.x; row < a->rows; row += gridDim.x) {
        dsc_row_sum s = {0.0, 0.0, 0.0, 0.0, 0.0};
        for (int64_t t = threadIdx.x; t < a->length; t += blockDim.x) {
            const int64_t at = row * a->length + t;
            if (a->counted[at] != IGNORED) {
                s.logp += (double)a->logp[at];
                s.n += 1.0;
            }
            if (a->targets != NULL && a->targets[at] != IGNORED) {
                s.nll -= (double)a->logp[at];
                s.nll_n += 1.0;
            }
        }
        all[threadIdx.x] = s;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (uint32_t t = 1; t < blockDim.x; ++t) {
                s.logp += all[t].logp;
                s.n += all[t].n;
                s.nll += all[t].nll;
                s.nll_n += all[t].nll_n;
            }
            s.ratio = s.logp - (a->ref != NULL ? (double)a->ref[row] : 0.0);
            a->rows_sums[row] = s;
        }
        __syncthreads();
    }
}

DSC_INLINE double sigmoid(double z)
{
    return z >= 0.0 ? 1.0 / (1.0 + exp(-z)) : exp(z) / (1.0 + exp(z));
}

DSC_INLINE double log_sigmoid(double z)
{
    return z >= 0.0 ? -log1p(exp(-z)) : z - log1p(exp(z));
}

/* log(1 - e^p) for p < 0. */
DSC_INLINE double log_1_minus_exp(double p)
{
    return p > -0.6931471805599453 ? log(-expm1(p)) : log1p(-exp(p));
}

/* A loss and its derivatives by the chosen and the rejected row's log-probability. */
typedef struct pair_loss {
    double loss, d_chosen, d_rejected;
    double odds; /* of ORPO */
} pair_loss;

DSC_INLINE pair_loss pair_loss_of(double loss, double d_chosen, double d_rejected)
{
    const pair_loss l = {loss, d_chosen, d_rejected, 0.0};
    return l;
}

/* -(1-e) log s(z) - e log s(-z), z growing by `c` and -`r` with the two. */
DSC_INLINE pair_loss logistic(double z, double e, double c, double r)
{
    const double dz = -(1.0 - e) * sigmoid(-z) + e * sigmoid(z);
    return pair_loss_of(-(1.0 - e) * log_sigmoid(z) - e * log_sigmoid(-z), dz * c, -dz * r);
}

/* Losses of z = b(c - r) alone. */
DSC_INLINE pair_loss of_difference(const dsc_preference_args *a, double z)
{
    const double b = a->beta;
    const double e = a->label_smoothing;
    double loss = 0.0;
    double dz = 0.0;
    if (a->loss_is == DSC_PREFERENCE_HINGE) {
        loss = z < 1.0 ? 1.0 - z : 0.0;
        dz = z < 1.0 ? -1.0 : 0.0;
    } else if (a->loss_is == DSC_PREFERENCE_ROBUST) {
        loss = (-(1.0 - e) * log_sigmoid(z) + e * log_sigmoid(-z)) / (1.0 - 2.0 * e);
        dz = (-(1.0 - e) * sigmoid(-z) - e * sigmoid(z)) / (1.0 - 2.0 * e);
    } else { /* EXO_PAIR */
        const double win = log_sigmoid(z) - log1p(-e);
        const double lose = log_sigmoid(-z) - log(e);
        loss = sigmoid(z) * win + sigmoid(-z) * lose;
        dz = sigmoid(z) * sigmoid(-z) * (win - lose);
    }
    return pair_loss_of(loss, dz * b, -dz * b);
}

/* Losses of each answer against the reference. */
DSC_INLINE pair_loss of_each(const dsc_preference_args *a, double c, double r)
{
    const double b = a->beta;
    const double x = b * c;
    const double y = b * r;
    const double sx = sigmoid(x);
    const double sy = sigmoid(y);
    const double sz = sigmoid(x - y);
    const double win = c - 0.5 / b;
    const double lose = r + 0.5 / b;
    const double down = b * sz * (1.0 - sz);
    switch (a->loss_is) {
    case DSC_PREFERENCE_NCA_PAIR:
        return pair_loss_of(-log_sigmoid(x) - 0.5 * log_sigmoid(-x) - 0.5 * log_sigmoid(-y),
                            b * (-sigmoid(-x) + 0.5 * sx), b * 0.5 * sy);
    case DSC_PREFERENCE_BCO_PAIR:
        return pair_loss_of(-log_sigmoid(x) - log_sigmoid(-y), -b * sigmoid(-x), b * sy);
    case DSC_PREFERENCE_SPPO_HARD:
        return pair_loss_of(win * win + lose * lose, 2.0 * win, 2.0 * lose);
    case DSC_PREFERENCE_APO_ZERO:
        return pair_loss_of(1.0 - sx + sy, -b * sx * (1.0 - sx), b * sy * (1.0 - sy));
    default: /* APO_DOWN */
        return pair_loss_of(sx + 1.0 - sz, b * sx * (1.0 - sx) - down, down);
    }
}

DSC_INLINE pair_loss of_odds(const dsc_preference_args *a, const dsc_row_sum *c,
                             const dsc_row_sum *r)
{
    const double pc = c->logp / fmax(c->n, 1.0);
    const double pr = r->logp / fmax(r->n, 1.0);
    const double odds = (pc - pr) - (log_1_minus_exp(pc) - log_1_minus_exp(pr));
    const double d = -a->beta * sigmoid(-odds);
    pair_loss l = pair_loss_of(-a->beta * log_sigmoid(odds), d / -expm1(pc) / fmax(c->n, 1.0),
                               -d / -expm1(pr) / fmax(r->n, 1.0));
    l.odds = odds;
    return l;
}

DSC_INLINE pair_loss of_reward(const dsc_preference_args *a, double c, double r)
{
    pair_loss l = logistic(c - r, 0.0, 1.0, 1.0);
    const double both = c + r;
    l.loss += a->center * both * both;
    l.d_chosen += 2.0 * a->center * both;
    l.d_rejected += 2.0 * a->center * both;
    return l;
}

DSC_INLINE pair_loss loss_of_pair(const dsc_preference_args *a, const dsc_row_sum *c,
                                  const dsc_row_sum *r)
{
    const double beta = a->beta;
    const double nc = fmax(c->n, 1.0);
    const double nr = fmax(r->n, 1.0);
    const double off = c->ratio / nc - r->ratio / nr - 0.5 / beta;
    switch (a->loss_is) {
    case DSC_PREFERENCE_SIGMOID:
        return logistic(beta * (c->ratio - r->ratio), a->label_smoothing, beta, beta);
    case DSC_PREFERENCE_HINGE:
    case DSC_PREFERENCE_ROBUST:
    case DSC_PREFERENCE_EXO_PAIR:
        return of_difference(a, beta * (c->ratio - r->ratio));
    case DSC_PREFERENCE_IPO:
        return pair_loss_of(off * off, 2.0 * off / nc, -2.0 * off / nr);
    case DSC_PREFERENCE_SIGMOID_NORM:
        return logistic(beta * (c->ratio / nc - r->ratio / nr), 0.0, beta / nc, beta / nr);
    case DSC_PREFERENCE_SIMPO:
        return logistic(beta * (c->ratio / nc - r->ratio / nr) - a->gamma, a->label_smoothing,
                        beta / nc, beta / nr);
    case DSC_PREFERENCE_ORPO:
        return of_odds(a, c, r);
    case DSC_PREFERENCE_REWARD:
        return of_reward(a, c->ratio, r->ratio);
    default:
        return of_each(a, c->ratio, r->ratio);
    }
}

/* z of KTO. */
DSC_INLINE double divergence(const dsc_preference_args *a)
{
    return a->loss_is == DSC_PREFERENCE_KTO && a->kl != NULL ? fmax((double)*a->kl, 0.0) : 0.0;
}

/* d_chosen is by the row. */
DSC_INLINE pair_loss loss_of_row(const dsc_preference_args *a, int64_t row)
{
    const bool desired = a->labels[row] != 0;
    const double weight = desired ? a->desirable_weight : a->undesirable_weight;
    const double sign = desired ? 1.0 : -1.0;
    const double s = sigmoid(sign * a->beta * (a->rows_sums[row].ratio - divergence(a)));
    return pair_loss_of(weight * (1.0 - s), -weight * sign * a->beta * s * (1.0 - s), 0.0);
}

/* Pairs, or rows, with a counted target: padding has none. */
DSC_INLINE bool counts(const dsc_preference_args *a, int64_t i)
{
    return a->rows_sums[i].n > 0.0 || (a->paired != 0 && a->rows_sums[i + a->rows / 2].n > 0.0);
}

DSC_INLINE double n_samples(const dsc_preference_args *a)
{
    double sum = 0.0;
    for (int64_t i = 0; i < (a->paired != 0 ? a->rows / 2 : a->rows); ++i) {
        sum += counts(a, i) ? 1.0 : 0.0;
    }
    return sum;
}

/* Of ORPO: its negative log-likelihood, and of how many tokens. */
DSC_INLINE double chosen_nll(const dsc_preference_args *a, double *n_out)
{
    double sum = 0.0;
    double n = 0.0;
    for (int64_t i = 0; i < a->rows / 2 && a->targets != NULL; ++i) {
        sum += a->rows_sums[i].nll;
        n += a->rows_sums[i].nll_n;
    }
    *n_out = n;
    return n > 0.0 ? sum / n : 0.0;
}

/* The order of ds_preference_sums. */
enum {
    CHOSEN_REWARD,
    REJECTED_REWARD,
    ACCURACY,
    MARGIN,
    CHOSEN_LOGP,
    REJECTED_LOGP,
    N_CHOSEN,
    N_REJECTED,
    NLL,
    ODDS,
    KL
};

DSC_INLINE bool is_of_means(const dsc_preference_args *a)
{
    return a->loss_is == DSC_PREFERENCE_SIMPO || a->loss_is == DSC_PREFERENCE_ORPO;
}

DSC_INLINE double reward_of(const dsc_preference_args *a, const dsc_row_sum *r)
{
    const double beta = a->loss_is == DSC_PREFERENCE_REWARD ? 1.0 : a->beta;
    return beta * (is_of_means(a) ? r->logp / fmax(r->n, 1.0) : r->ratio);
}

DSC_INLINE void add_answer(const dsc_preference_args *a, const dsc_row_sum *r, bool chosen,
                           double sums[DSC_PREFERENCE_SUMS])
{
    sums[chosen ? CHOSEN_REWARD : REJECTED_REWARD] += reward_of(a, r);
    sums[chosen ? CHOSEN_LOGP : REJECTED_LOGP] +=
        is_of_means(a) ? r->logp / fmax(r->n, 1.0) : r->logp;
    sums[chosen ? N_CHOSEN : N_REJECTED] += 1.0;
}

/* Pair or row i; returns its loss. */
DSC_INLINE double add_sample(const dsc_preference_args *a, int64_t i,
                             double sums[DSC_PREFERENCE_SUMS])
{
    const dsc_row_sum *c = &a->rows_sums[i];
    if (a->paired == 0) {
        add_answer(a, c, a->labels[i] != 0, sums);
        return loss_of_row(a, i).loss;
    }
    const dsc_row_sum *r = &a->rows_sums[i + a->rows / 2];
    const pair_loss l = loss_of_pair(a, c, r);
    add_answer(a, c, true, sums);
    add_answer(a, r, false, sums);
    sums[ACCURACY] += reward_of(a, c) > reward_of(a, r) ? 1.0 : 0.0;
    sums[MARGIN] += reward_of(a, c) - reward_of(a, r);
    sums[ODDS] += l.odds;
    return l.loss;
}

/* One thread: a batch has few rows. */
DSC_INLINE void preference_loss_all(const dsc_preference_args *a)
{
    double sums[DSC_PREFERENCE_SUMS];
    double loss = 0.0;
    if (threadIdx.x != 0) {
        return;
    }
    for (int i = 0; i < DSC_PREFERENCE_SUMS; ++i) {
        sums[i] = 0.0;
    }
    for (int64_t i = 0; i < a->rows; ++i) {
        a->logps[i] = (float)a->rows_sums[i].logp;
    }
    for (int64_t i = 0; i < (a->paired != 0 ? a->rows / 2 : a->rows); ++i) {
        loss += counts(a, i) ? add_sample(a, i, sums) : 0.0;
    }
    const double n = n_samples(a);
    loss = n > 0.0 ? loss / n : 0.0;
    if (a->loss_is == DSC_PREFERENCE_ORPO) {
        double tokens = 0.0;
        const double nll = chosen_nll(a, &tokens);
        loss += nll;
        sums[NLL] = nll * n;
    }
    sums[KL] = divergence(a) * n;
    *a->loss = (float)loss;
    *a->count = (float)n;
    for (int i = 0; i < DSC_PREFERENCE_SUMS; ++i) {
        a->sums[i] = (float)sums[i];
    }
}

/* What the loss changes by with the log-probability of a row, before ORPO's likelihood. */
DSC_INLINE double gradient_of(const dsc_preference_args *a, int64_t row)
{
    const double n = n_samples(a);
    const double each = n > 0.0 ? (double)*a->dloss / n : 0.0;
    const int64_t half = a->rows / 2;
    if (a->paired == 0) {
        return each * loss_of_row(a, row).d_chosen;
    }
    const int64_t i = row < half ? row : row - half;
    const pair_loss l = loss_of_pair(a, &a->rows_sums[i], &a->rows_sums[i + half]);
    return each * (row < half ? l.d_chosen : l.d_rejected);
}

/* Each counted token of a row has the same. */
DSC_INLINE void preference_backward_all(const dsc_preference_args *a)
{
    __shared__ double gradient, likelihood;
    for (int64_t row = blockIdx.x; row < a->rows; row += gridDim.x) {
        if (threadIdx.x == 0) {
            double n = 0.0;
            gradient = gradient_of(a, row);
            if (a->loss_is == DSC_PREFERENCE_ORPO && row < a->rows / 2) {
                (void)chosen_nll(a, &n);
            }
            likelihood = n > 0.0 ? (double)*a->dloss / n : 0.0;
        }
        __syncthreads();
        for (int64_t t = threadIdx.x; t < a->length; t += blockDim.x) {
            const int64_t at = row * a->length + t;
            float d = a->counted[at] != IGNORED ? (float)gradient : 0.0f;
            if (likelihood != 0.0 && a->targets[at] != IGNORED) {
                d = (float)((double)d - likelihood);
            }
            a->dlogp[at] = d;
        }
        __syncthreads();
    }
}

DSC_KERNEL(preference_rows, dsc_preference_args, preference_rows_all(a))
DSC_KERNEL(preference_loss, dsc_preference_args, preference_loss_all(a))
DSC_KERNEL(preference_backward, dsc_preference_args, preference_backward_all(a))
