// Package drivertest is the suite that every driver of package cudaipc passes. A
// driver's tests hand it a way to open the driver anew:
//
//	func open() (cudaipc.Driver, error) { return emul.New(emul.Options{}) }
//
//	func TestMain(m *testing.M) { drivertest.Main(m, open) }
//
//	func TestDriver(t *testing.T) { drivertest.Run(t, open) }
//
// Much of the contract is about two processes. The second one is the test binary
// itself, run again: [Main] notices that, opens the driver there, and does what
// the suite asks it to until the suite hangs up.
//
// Nothing is timed. Where an operation has to be late, a wait for a word is in
// front of it, and the suite decides when it ends. That a copy is not overtaken
// shows best with a driver whose copies are slow.
//
// What a device lacks, by its Caps, is skipped, once it is clear that it refuses.
// A driver that is not to be had here, with ErrNotBuilt, ErrNoDriver or
// ErrNoDevice, skips everything.
package drivertest
