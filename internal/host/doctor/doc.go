// Package doctor checks whether this machine can run a host and its processes: the features of the
// kernel, the limits, and the Python installation. It tries features instead of comparing version
// numbers.
//
// [Examine] leaves nothing behind: what it creates for a trial is removed before it returns. It trusts
// the kernel alone. Its results are text for users. A caller with a GPU driver passes in what the GPUs
// offer; the package only formats it.
package doctor
