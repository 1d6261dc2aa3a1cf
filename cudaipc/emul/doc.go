// Package emul is a GPU made of shared memory and goroutines, for machines
// without one. It keeps the contract of cudaipc.Driver, and fails where CUDA
// fails, with CUDA's numbers:
//
//	driver, err := emul.New(emul.Options{})
//
// What it promises beyond the contract, so that tests may rest on it:
//
//   - Device memory lies at addresses that nothing else in the process can get
//     while the driver is open. An operation that reaches outside of it, or into
//     memory that was freed, ends the device with CUDA_ERROR_ILLEGAL_ADDRESS; it
//     never ends the process, and never touches what came after.
//   - Arenas are sealed descriptors, and handles find their memory by the name
//     of the process that made them: no server and no file is involved. Both
//     outlive the process that made them in those that have opened them, handles
//     for nobody else.
//   - A device that has failed takes no other process along, and no other device
//     that does not wait for its events.
//   - A stream that is closed does what was submitted, as in CUDA, but ends with
//     its device at the latest. A wait for a word looks at it a hundred times and
//     then ever more rarely, once a millisecond in the end.
//   - Nothing waits for a device that has failed or was closed, and nothing of
//     it is left when the driver is closed: no descriptor, no mapping, no
//     goroutine.
//   - The UUID of a device follows from its number, so processes agree.
//
// [Options] decide how slow operations are, which of them fail, and what the
// GPU lacks. A copy reads and writes when its time is over and not before: what
// is read too early is missing, and what is overwritten too early is wrong.
//
// # What it does not emulate
//
// There is no memory but the process's, so tests that mix up device and host
// memory pass where a GPU would not forgive. Each process has the whole of the
// device's memory. Kernels do not exist.
package emul
