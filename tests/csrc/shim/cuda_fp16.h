#pragma once

#include <cmath>
#include <cstdint>

struct __half {
  uint16_t bits;
};

inline float __half2float(__half value) {
  const int exponent = (value.bits >> 10) & 31;
  const int fraction = value.bits & 1023;
  float magnitude = std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  if (exponent == 0) magnitude = std::ldexp(static_cast<float>(fraction), -24);
  if (exponent == 31) magnitude = fraction != 0 ? NAN : INFINITY;
  return value.bits & 0x8000 ? -magnitude : magnitude;
}
