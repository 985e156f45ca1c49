/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of preference and its backward operator. The formulas: deepspeed/preference.h.
 *
 * A row's log-probability is summed in fp64, and so is all that follows up to the store: log-ratios
 * are small differences of large sums. Derivatives are those by the two log-ratios of a pair.
 */
#include "accel/cpu/ref/ref_real.h"
#include "op/ops.h"

#include <deepspeed/preference.h>

enum { IGNORED = -100 };

/* One call; `logp` and so on are operands. */
typedef struct batch {
    const dsi_preference_attrs *a;
    const ds_tensor *logp, *ref, *kl;          /* ref and kl: NULL when absent */
    const int32_t *counted, *targets, *labels; /* the last two: NULL when absent */
    int64_t rows, length;
    bool paired;
} batch;

static batch batch_of(const ds_kernel_call *call, uint32_t first)
{
    const dsi_preference_attrs *a = call->sig->attrs;
    const ds_tensor *logp = &call->in[first];
    const ds_tensor *targets = ref_in(call, first + 2);
    const ds_tensor *labels = ref_in(call, first + 4);
    return (batch){.a = a,
                   .logp = logp,
                   .ref = ref_in(call, first + 3),
                   .kl = ref_in(call, first + 5),
                   .counted = call->in[first + 1].data,
                   .targets = targets != NULL ? targets->data : NULL,
                   .labels = labels != NULL ? labels->data : NULL,
                   .rows = logp->meta.shape.dims[0],
                   .length = logp->meta.shape.dims[1],
                   .paired = ds_preference_is_paired((ds_preference_loss)a->loss)};
}

/* A row: its log-probability, how many tokens that is of, and how much it is above the reference's.
 */
typedef struct row_sum {
    double logp, n, ratio;
} row_sum;

static row_sum row_of(const batch *b, int64_t row)
{
    row_sum r = {0.0, 0.0, 0.0};
    for (int64_t t = 0; t < b->length; ++t) {
        if (b->counted[row * b->length + t] != IGNORED) {
            r.logp += (double)ref_get(b->logp, row * b->length + t);
            r.n += 1.0;
        }
    }
    r.ratio = r.logp - (b->ref != NULL ? (double)ref_get(b->ref, row) : 0.0);
    return r;
}

static double sigmoid(double z)
{
    return z >= 0.0 ? 1.0 / (1.0 + exp(-z)) : exp(z) / (1.0 + exp(z));
}

static double log_sigmoid(double z)
{
    return z >= 0.0 ? -log1p(exp(-z)) : z - log1p(exp(z));
}

/* log(1 - e^p) for p < 0. */
static double log_1_minus_exp(double p)
{
    return p > -0.6931471805599453 ? log(-expm1(p)) : log1p(-exp(p));
}

/* A loss and its derivatives by the chosen and the rejected row's log-probability. */
typedef struct pair_loss {
    double loss, d_chosen, d_rejected;
    double odds; /* of ORPO */
} pair_loss;

/* -(1-e) log s(z) - e log s(-z), z growing by `c` and -`r` with the two. */
static pair_loss logistic(double z, double e, double c, double r)
{
    const double dz = -(1.0 - e) * sigmoid(-z) + e * sigmoid(z);
    return (pair_loss){-(1.0 - e) * log_sigmoid(z) - e * log_sigmoid(-z), dz * c, -dz * r, 0.0};
}

/* Losses of z = b(c - r) alone. */
static pair_loss of_difference(const dsi_preference_attrs *a, double z)
{
    const double b = a->beta;
    const double e = a->label_smoothing;
    double loss = 0.0;
    double dz = 0.0;
    if (a->loss == DS_PREFERENCE_HINGE) {
        loss = z < 1.0 ? 1.0 - z : 0.0;
        dz = z < 1.0 ? -1.0 : 0.0;
    } else if (a->loss == DS_PREFERENCE_ROBUST) {
        loss = (-(1.0 - e) * log_sigmoid(z) + e * log_sigmoid(-z)) / (1.0 - 2.0 * e);
        dz = (-(1.0 - e) * sigmoid(-z) - e * sigmoid(z)) / (1.0 - 2.0 * e);
    } else { /* EXO_PAIR */
        const double win = log_sigmoid(z) - log1p(-e);
        const double lose = log_sigmoid(-z) - log(e);
        loss = sigmoid(z) * win + sigmoid(-z) * lose;
        dz = sigmoid(z) * sigmoid(-z) * (win - lose);
    }
    return (pair_loss){loss, dz * b, -dz * b, 0.0};
}

/* Losses of each answer against the reference. */
static pair_loss of_each(const dsi_preference_attrs *a, double c, double r)
{
    const double b = a->beta;
    const double x = b * c;
    const double y = b * r;
    const double sx = sigmoid(x);
    const double sy = sigmoid(y);
    const double sz = sigmoid(x - y);
    switch (a->loss) {
    case DS_PREFERENCE_NCA_PAIR:
        return (pair_loss){-log_sigmoid(x) - 0.5 * log_sigmoid(-x) - 0.5 * log_sigmoid(-y),
                           b * (-sigmoid(-x) + 0.5 * sx), b * 0.5 * sy, 0.0};
    case DS_PREFERENCE_BCO_PAIR:
        return (pair_loss){-log_sigmoid(x) - log_sigmoid(-y), -b * sigmoid(-x), b * sy, 0.0};
    case DS_PREFERENCE_SPPO_HARD: {
        const double win = c - 0.5 / b;
        const double lose = r + 0.5 / b;
        return (pair_loss){win * win + lose * lose, 2.0 * win, 2.0 * lose, 0.0};
    }
    case DS_PREFERENCE_APO_ZERO:
        return (pair_loss){1.0 - sx + sy, -b * sx * (1.0 - sx), b * sy * (1.0 - sy), 0.0};
    default: /* APO_DOWN */
        break;
    }
    const double down = b * sz * (1.0 - sz);
    return (pair_loss){sx + 1.0 - sz, b * sx * (1.0 - sx) - down, down, 0.0};
}

static pair_loss of_odds(const dsi_preference_attrs *a, const row_sum *c, const row_sum *r)
{
    const double pc = c->logp / fmax(c->n, 1.0);
    const double pr = r->logp / fmax(r->n, 1.0);
    const double odds = (pc - pr) - (log_1_minus_exp(pc) - log_1_minus_exp(pr));
    const double d = -a->beta * sigmoid(-odds);
    return (pair_loss){-a->beta * log_sigmoid(odds), d / -expm1(pc) / fmax(c->n, 1.0),
                       -d / -expm1(pr) / fmax(r->n, 1.0), odds};
}

static pair_loss loss_of_pair(const batch *b, const row_sum *c, const row_sum *r)
{
    const dsi_preference_attrs *a = b->a;
    const double beta = a->beta;
    const double nc = fmax(c->n, 1.0);
    const double nr = fmax(r->n, 1.0);
    switch (a->loss) {
    case DS_PREFERENCE_SIGMOID:
        return logistic(beta * (c->ratio - r->ratio), a->label_smoothing, beta, beta);
    case DS_PREFERENCE_HINGE:
    case DS_PREFERENCE_ROBUST:
    case DS_PREFERENCE_EXO_PAIR:
        return of_difference(a, beta * (c->ratio - r->ratio));
    case DS_PREFERENCE_IPO: {
        const double off = c->ratio / nc - r->ratio / nr - 0.5 / beta;
        return (pair_loss){off * off, 2.0 * off / nc, -2.0 * off / nr, 0.0};
    }
    case DS_PREFERENCE_SIGMOID_NORM:
        return logistic(beta * (c->ratio / nc - r->ratio / nr), 0.0, beta / nc, beta / nr);
    case DS_PREFERENCE_SIMPO:
        return logistic(beta * (c->ratio / nc - r->ratio / nr) - a->gamma, a->label_smoothing,
                        beta / nc, beta / nr);
    case DS_PREFERENCE_ORPO:
        return of_odds(a, c, r);
    case DS_PREFERENCE_REWARD: {
        pair_loss l = logistic(c->ratio - r->ratio, 0.0, 1.0, 1.0);
        const double both = c->ratio + r->ratio;
        l.loss += a->center * both * both;
        l.d_chosen += 2.0 * a->center * both;
        l.d_rejected += 2.0 * a->center * both;
        return l;
    }
    default:
        break;
    }
    return of_each(a, c->ratio, r->ratio);
}

/* z of KTO. */
static double divergence(const batch *b)
{
    const double kl =
        b->a->loss == DS_PREFERENCE_KTO && b->kl != NULL ? (double)ref_get(b->kl, 0) : 0.0;
    return fmax(kl, 0.0);
}

/* d_chosen is by the row. */
static pair_loss loss_of_row(const batch *b, int64_t row, const row_sum *r)
{
    const dsi_preference_attrs *a = b->a;
    const bool desired = b->labels[row] != 0;
    const double weight = desired ? a->desirable_weight : a->undesirable_weight;
    const double sign = desired ? 1.0 : -1.0;
    const double s = sigmoid(sign * a->beta * (r->ratio - divergence(b)));
    return (pair_loss){weight * (1.0 - s), -weight * sign * a->beta * s * (1.0 - s), 0.0, 0.0};
}

/* Tokens of ORPO's nll, and their sum. */
static double chosen_nll(const batch *b, double *n_out)
{
    double sum = 0.0;
    double n = 0.0;
    const int64_t end = b->rows / 2 * b->length;
    for (int64_t i = 0; i < end && b->targets != NULL; ++i) {
        if (b->targets[i] != IGNORED) {
            sum -= (double)ref_get(b->logp, i);
            n += 1.0;
        }
    }
    *n_out = n;
    return n > 0.0 ? sum / n : 0.0;
}

/* Samples with a counted target: padding has none. */
static double n_samples(const batch *b)
{
    const int64_t n = b->paired ? b->rows / 2 : b->rows;
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        const bool counts = row_of(b, i).n > 0.0 || (b->paired && row_of(b, i + n).n > 0.0);
        sum += counts ? 1.0 : 0.0;
    }
    return sum;
}

static void set_logps(const ds_kernel_call *call, int64_t row, const row_sum *r)
{
    ref_set(&call->out[2], row, (real)r->logp);
}

/* What is logged of one answer: its reward and its log-probability. */
static double reward_of(const batch *b, const row_sum *r)
{
    const bool mean = b->a->loss == DS_PREFERENCE_SIMPO || b->a->loss == DS_PREFERENCE_ORPO;
    const double beta = b->a->loss == DS_PREFERENCE_REWARD ? 1.0 : b->a->beta;
    return beta * (mean ? r->logp / fmax(r->n, 1.0) : r->ratio);
}

static double shown_logp(const batch *b, const row_sum *r)
{
    const bool mean = b->a->loss == DS_PREFERENCE_SIMPO || b->a->loss == DS_PREFERENCE_ORPO;
    return mean ? r->logp / fmax(r->n, 1.0) : r->logp;
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

static void add_answer(const batch *b, const row_sum *r, bool chosen, double *sums)
{
    sums[chosen ? CHOSEN_REWARD : REJECTED_REWARD] += reward_of(b, r);
    sums[chosen ? CHOSEN_LOGP : REJECTED_LOGP] += shown_logp(b, r);
    sums[chosen ? N_CHOSEN : N_REJECTED] += 1.0;
}

static double forward_pairs(const ds_kernel_call *call, const batch *b, double *sums)
{
    const int64_t n = b->rows / 2;
    double loss = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        const row_sum c = row_of(b, i);
        const row_sum r = row_of(b, i + n);
        set_logps(call, i, &c);
        set_logps(call, i + n, &r);
        if (c.n + r.n == 0.0) {
            continue;
        }
        const pair_loss l = loss_of_pair(b, &c, &r);
        loss += l.loss;
        add_answer(b, &c, true, sums);
        add_answer(b, &r, false, sums);
        sums[ACCURACY] += reward_of(b, &c) > reward_of(b, &r) ? 1.0 : 0.0;
        sums[MARGIN] += reward_of(b, &c) - reward_of(b, &r);
        sums[ODDS] += l.odds;
    }
    return loss;
}

static double forward_rows(const ds_kernel_call *call, const batch *b, double *sums)
{
    double loss = 0.0;
    for (int64_t i = 0; i < b->rows; ++i) {
        const row_sum r = row_of(b, i);
        set_logps(call, i, &r);
        if (r.n > 0.0) {
            loss += loss_of_row(b, i, &r).loss;
            add_answer(b, &r, b->labels[i] != 0, sums);
        }
    }
    return loss;
}

static void forward(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const batch b = batch_of(call, 0);
    const double n = n_samples(&b);
    double sums[DSI_PREFERENCE_SUMS] = {0.0};
    double loss = b.paired ? forward_pairs(call, &b, sums) : forward_rows(call, &b, sums);
    (void)begin;
    (void)end;
    (void)slot;
    loss = n > 0.0 ? loss / n : 0.0;
    if (b.a->loss == DS_PREFERENCE_ORPO) {
        double tokens = 0.0;
        const double nll = chosen_nll(&b, &tokens);
        loss += nll;
        sums[NLL] = nll * n;
    }
    sums[KL] = divergence(&b) * n;
    ref_set(&call->out[0], 0, (real)loss);
    ref_set(&call->out[1], 0, (real)n);
    for (int64_t i = 0; i < DSI_PREFERENCE_SUMS; ++i) {
        ref_set(&call->out[3], i, (real)sums[i]);
    }
}

static ds_status preference_run(const ds_kernel_call *call)
{
    dsi_ref_serial(call, forward);
    return DS_OK;
}

/* The gradient of a row: each counted token has the same. */
static void spread(const ds_kernel_call *call, const batch *b, int64_t row, double gradient)
{
    for (int64_t t = 0; t < b->length; ++t) {
        const int64_t at = row * b->length + t;
        ref_set(&call->out[0], at, b->counted[at] != IGNORED ? (real)gradient : R(0.0));
    }
}

static void add_nll(const ds_kernel_call *call, const batch *b, double dloss)
{
    double n = 0.0;
    (void)chosen_nll(b, &n);
    const int64_t end = b->rows / 2 * b->length;
    for (int64_t i = 0; i < end && n > 0.0; ++i) {
        if (b->targets[i] != IGNORED) {
            ref_set(&call->out[0], i, (real)((double)ref_get(&call->out[0], i) - dloss / n));
        }
    }
}

static void backward(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const batch b = batch_of(call, 1);
    const double dloss = (double)ref_get(&call->in[0], 0);
    const double n = n_samples(&b);
    const double each = n > 0.0 ? dloss / n : 0.0;
    const int64_t half = b.paired ? b.rows / 2 : b.rows;
    (void)begin;
    (void)end;
    (void)slot;
    for (int64_t i = 0; i < half; ++i) {
        const row_sum c = row_of(&b, i);
        if (!b.paired) {
            spread(call, &b, i, each * loss_of_row(&b, i, &c).d_chosen);
            continue;
        }
        const row_sum r = row_of(&b, i + half);
        const pair_loss l = loss_of_pair(&b, &c, &r);
        spread(call, &b, i, each * l.d_chosen);
        spread(call, &b, i + half, each * l.d_rejected);
    }
    if (b.a->loss == DS_PREFERENCE_ORPO && b.targets != NULL) {
        add_nll(call, &b, dloss);
    }
}

static ds_status preference_backward_run(const ds_kernel_call *call)
{
    dsi_ref_serial(call, backward);
    return DS_OK;
}

REF_KERNEL(preference, preference_run, NULL);
REF_KERNEL(preference_backward, preference_backward_run, NULL);
const ds_kernel *const DSI_REF(preference)[] = {&preference_kernel, &preference_backward_kernel,
                                                NULL};
