/* SPDX-License-Identifier: Apache-2.0 */
/* Whether two plans are equal, as a number: a hash of the printed steps, on any machine the same.
 */
#ifndef TEST_COMMON_PLAN_DIGEST_H
#define TEST_COMMON_PLAN_DIGEST_H

#include "plan/plan.h"

ds_status plan_digest(const dsi_plan *plan, uint64_t *digest_out);

#endif
