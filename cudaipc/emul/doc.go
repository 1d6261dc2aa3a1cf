// Package emul emulates a GPU with shared memory and goroutines, for machines without one. It keeps
// the contract of cudaipc.Driver, and fails where CUDA fails, with CUDA's codes:
//
//	driver, err := emul.New(emul.Options{})
//
// It makes these promises beyond the contract, for tests:
//
//   - Device memory lies at addresses that no other code of the process can get while the driver is
//     open. An operation that reaches outside of it, or into freed memory, ends the device with
//     CUDA_ERROR_ILLEGAL_ADDRESS; it never ends the process, and never touches later memory.
//   - Arenas are sealed descriptors, and handles find their memory through the process that made
//     them: there is no server and no file. Both outlive that process in the processes that have
//     opened them; a handle cannot be opened any more after its end.
//   - A failed device affects no other process, and no other device that does not wait for its
//     events.
//   - A closed stream runs its submitted operations, as in CUDA, but ends with its device. A wait
//     for a word checks it a hundred times and then with growing pauses of up to a millisecond.
//   - No call waits for a failed or closed device, and none of its objects is left when the driver
//     is closed: no descriptor, no mapping, no goroutine.
//   - The UUID of a device is derived from its number, so it is the same in all processes.
//
// [Options] set how slow operations are, which of them fail, and which features the GPU lacks. A
// copy reads and writes when its time is over: a reader that is too early sees old bytes, and
// source bytes that are overwritten too early are copied wrong.
//
// # Limits of the emulation
//
// All memory is the process's, so tests that confuse device and host memory pass where a GPU would
// fail. Each process has the whole size of the device's memory. There are no kernels.
package emul
