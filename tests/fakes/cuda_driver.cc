// A stand-in for libcuda.so.1 with the two functions that the program asks; built several times, as the macros say.

extern "C" {
int cuInit(unsigned) { return FAKE_START_ERROR; }
int cuDeviceGetCount(int* count) {
  *count = FAKE_DEVICES;
  return 0;
}
}
