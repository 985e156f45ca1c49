/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions of files' element types against the plain ones of base, and double rounding. */
#include "common/check.h"

#include "base/half.h"
#include "io/convert.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void halves_widen_and_come_back(void **state)
{
    (void)state;
    static uint16_t in[65536];
    static uint16_t back[65536];
    static float wide[65536];
    static double wider[65536];
    for (uint32_t i = 0; i < 65536; ++i) {
        in[i] = (uint16_t)i;
    }
    const ds_dtype dtypes[] = {DS_DTYPE_BF16, DS_DTYPE_F16};
    for (int k = 0; k < 2; ++k) {
        assert_int_equal(dsi_convert(dtypes[k], in, DS_DTYPE_F32, wide, 65536), 0);
        assert_int_equal(dsi_convert(dtypes[k], in, DS_DTYPE_F64, wider, 65536), 0);
        assert_int_equal(dsi_convert(DS_DTYPE_F64, wider, dtypes[k], back, 65536), 0);
        for (uint32_t i = 0; i < 65536; ++i) {
            const float want = k == 0 ? dsi_bf16_to_f32(in[i]) : dsi_f16_to_f32(in[i]);
            if (isnan(want)) {
                assert_true(isnan(wide[i]) && isnan(wider[i]));
                continue;
            }
            assert_true(wide[i] == want && wider[i] == (double)want);
            assert_int_equal(back[i], in[i]);
        }
    }
}

/* A double just above the middle between two 16-bit values must round up, though its fp32 is the
 * middle itself. */
static void doubles_are_rounded_once(void **state)
{
    (void)state;
    const struct {
        double value;
        uint16_t bf16, f16;
    } cases[] = {
        {1.0 + 0x1p-8, 0x3f80, 0x3c04},
        {1.0 + 0x1p-8 + 0x1p-40, 0x3f81, 0x3c04},
        {1.0 + 0x1p-8 - 0x1p-40, 0x3f80, 0x3c04},
        {1.0 + 3 * 0x1p-8, 0x3f82, 0x3c0c},
        {1.0 + 3 * 0x1p-8 - 0x1p-40, 0x3f81, 0x3c0c},
        {1.0 + 0x1p-11, 0x3f80, 0x3c00},
        {1.0 + 0x1p-11 + 0x1p-40, 0x3f80, 0x3c01},
        {-(1.0 + 0x1p-11 + 0x1p-40), 0xbf80, 0xbc01},
        {-(1.0 + 3 * 0x1p-11 - 0x1p-40), 0xbf80, 0xbc01},
        {0x1p-25, 0x3300, 0x0000},
        {0x1p-25 + 0x1p-60, 0x3300, 0x0001},
        {65519.999999999, 0x4780, 0x7bff},
        {-INFINITY, 0xff80, 0xfc00},
        {0.0, 0, 0},
        {-0.0, 0x8000, 0x8000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        uint16_t bf16 = 0;
        uint16_t f16 = 0;
        assert_int_equal(dsi_convert(DS_DTYPE_F64, &cases[i].value, DS_DTYPE_BF16, &bf16, 1), 0);
        assert_int_equal(dsi_convert(DS_DTYPE_F64, &cases[i].value, DS_DTYPE_F16, &f16, 1), 0);
        assert_int_equal(bf16, cases[i].bf16);
        assert_int_equal(f16, cases[i].f16);
    }
}

static void overflow_is_counted(void **state)
{
    (void)state;
    const float in[] = {65519.0f, 65520.0f, -1e30f, INFINITY, NAN, 3.4e38f};
    const double wide[] = {1e39, -1e300, INFINITY, NAN, 1.0, 3.4e38};
    uint16_t half[6];
    float single[6];
    assert_int_equal(dsi_convert(DS_DTYPE_F32, in, DS_DTYPE_F16, half, 6), 3);
    assert_int_equal(dsi_convert(DS_DTYPE_F32, in, DS_DTYPE_BF16, half, 6), 1);
    assert_int_equal(dsi_convert(DS_DTYPE_F64, wide, DS_DTYPE_F32, single, 6), 2);
    assert_int_equal(dsi_convert(DS_DTYPE_F64, wide, DS_DTYPE_F16, half, 6), 3);
    assert_true(isinf(single[2]) && isnan(single[3]) && single[4] == 1.0f);
}

static void unaligned_and_other_types(void **state)
{
    (void)state;
    char in[4 * 3000 + 1];
    char out[8 * 3000 + 1];
    for (int i = 0; i < 3000; ++i) {
        const float x = (float)i - 1500.5f;
        memcpy(in + 1 + 4 * i, &x, 4);
    }
    assert_int_equal(dsi_convert(DS_DTYPE_F32, in + 1, DS_DTYPE_F64, out + 1, 3000), 0);
    for (int i = 0; i < 3000; ++i) {
        double x = 0;
        memcpy(&x, out + 1 + 8 * i, 8);
        assert_true(x == (double)i - 1500.5);
    }
    assert_true(dsi_can_convert(DS_DTYPE_I64, DS_DTYPE_I64));
    assert_false(dsi_can_convert(DS_DTYPE_I64, DS_DTYPE_F32));
    assert_false(dsi_can_convert(DS_DTYPE_NONE, DS_DTYPE_NONE));
    assert_false(dsi_can_convert(DS_DTYPE_F32, DS_DTYPE_U8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_widen_and_come_back),
        cmocka_unit_test(doubles_are_rounded_once),
        cmocka_unit_test(overflow_is_counted),
        cmocka_unit_test(unaligned_and_other_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
