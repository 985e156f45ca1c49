/* Packing of attention's operands into tiles, and results out of them. See amx_attn_tile.h. */
#include "accel/cpu/amx/amx_attn_tile.h"

static __mmask32 first_halves(int64_t n)
{
    return n >= 32 ? 0xffffffffu : n <= 0 ? 0 : (1u << n) - 1u;
}

static __mmask16 first_words(int64_t n)
{
    return n >= 16 ? (__mmask16)0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1u);
}

/* 32 d of one token, zero past the edges. */
static __m512i load_wide(const attn_source *x, int64_t token, int64_t d)
{
    if (token >= x->n_tokens) {
        return _mm512_setzero_si512();
    }
    return _mm512_maskz_loadu_epi16(first_halves(x->d - d), x->at + token * x->stride + d);
}

static __m256i load_narrow(const attn_source *x, int64_t token, int64_t d)
{
    if (token >= x->n_tokens) {
        return _mm256_setzero_si256();
    }
    return _mm256_maskz_loadu_epi16(first_words(x->d - d), x->at + token * x->stride + d);
}

static void store_tile(uint16_t *tile, const __m512i r[16])
{
    for (int i = 0; i < 16; ++i) {
        _mm512_store_si512(tile + i * 32, r[i]);
    }
}

/* rows and rows_t of 16 tokens. */
static void pack_tokens(const attn_source *x, int64_t token, int64_t count, const attn_packed *to)
{
    const int64_t steps = attn_steps(x->d);
    for (int64_t s = 0; s < steps; ++s) {
        __m512i r[16];
        for (int i = 0; i < 16; ++i) {
            r[i] = load_wide(x, token + i, s * 32);
        }
        if (to->rows != NULL) {
            store_tile(to->rows + (token / 16 * steps + s) * TILE_HALVES, r);
        }
        if (to->rows_t != NULL) {
            attn_transpose(r);
            store_tile(to->rows_t + (s * (count / 16) + token / 16) * TILE_HALVES, r);
        }
    }
}

/* pairs and columns of 32 tokens. */
static void pack_pairs(const attn_source *x, int64_t token, const attn_packed *to)
{
    const int64_t tiles = 2 * attn_steps(x->d);
    for (int64_t t = 0; t < tiles; ++t) {
        __m512i r[16];
        for (int i = 0; i < 16; ++i) {
            r[i] = attn_pair_rows(load_narrow(x, token + 2 * i, t * 16),
                                  load_narrow(x, token + 2 * i + 1, t * 16));
        }
        const int64_t at = (token / 32 * tiles + t) * TILE_HALVES;
        if (to->pairs != NULL) {
            store_tile(to->pairs + at, r);
        }
        if (to->columns != NULL) {
            attn_transpose(r);
            store_tile(to->columns + at, r);
        }
    }
}

void dsi_amx_attn_pack(const attn_source *x, int64_t count, const attn_packed *to)
{
    if (to->rows != NULL || to->rows_t != NULL) {
        for (int64_t token = 0; token < count; token += 16) {
            pack_tokens(x, token, count, to);
        }
    }
    if (to->pairs != NULL || to->columns != NULL) {
        for (int64_t token = 0; token < count; token += 32) {
            pack_pairs(x, token, to);
        }
    }
}

static void store_token(uint16_t *to, vf v, __mmask16 mask)
{
    _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(v));
}

void dsi_amx_attn_store_columns(const float *tile, vf scale, uint16_t *to, int64_t stride,
                                int64_t n_tokens, int64_t n_d)
{
    __m512i r[16];
    for (int i = 0; i < 16; ++i) {
        r[i] = vf_bits(vf_mul(vf_load(tile + i * 16), scale));
    }
    attn_transpose(r);
    for (int64_t i = 0; i < 16 && i < n_tokens; ++i) {
        store_token(to + i * stride, vf_from_bits(r[i]), first_words(n_d));
    }
}

void dsi_amx_attn_store_rows(const float *tile, vf scale, uint16_t *to, int64_t stride,
                             int64_t n_tokens, int64_t n_d)
{
    for (int64_t i = 0; i < 16 && i < n_tokens; ++i) {
        store_token(to + i * stride, vf_mul(vf_load(tile + i * 16), scale), first_words(n_d));
    }
}
