/* SPDX-License-Identifier: Apache-2.0 */
/* What the 16 codes of NF4 stand for, over a block's largest magnitude (packed.h): quantiles of the
 * normal distribution (QLoRA, appendix E). */
#ifndef DSI_BASE_NF4_H
#define DSI_BASE_NF4_H

static const float dsi_nf4[16] = {-1.0f,
                                  -0.696192800998687744f,
                                  -0.525073051452636719f,
                                  -0.394917488098144531f,
                                  -0.284441381692886353f,
                                  -0.184773430228233337f,
                                  -0.0910500362515449524f,
                                  0.0f,
                                  0.0795802995562553406f,
                                  0.160930201411247253f,
                                  0.24611230194568634f,
                                  0.337915241718292236f,
                                  0.440709829330444336f,
                                  0.562617003917694092f,
                                  0.722956836223602295f,
                                  1.0f};

#endif
