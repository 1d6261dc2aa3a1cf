// Package chaos holds the tests that kill processes of a bus. It has no code
// of its own.
//
// A test hosts a bus whose stages and callers are processes, in Go and in
// Python, and kills them while requests are under way: with SIGKILL at random
// moments and at named places in the code (see package faultpoint), and with
// SIGSTOP. What a request promises to survive, it must survive: every result
// arrives once, in order and as it was sent, and in the end nothing of anybody
// is left, neither memory nor descriptors nor processes. TestHostKilled kills
// the host instead; TestBadPeers has clients that break the protocol, towards
// the host, and TestBadLanes those that break it towards each other.
//
// TestChaosDirect and TestChaosDirectPython do the same to pipelines whose
// deliveries go past the host and are handled at most once. There a request may
// fail, and must then name a process that was killed or stopped; no payload may
// change while anybody reads it, whoever of those that it went through is dead.
//
// TestChaosDrops has an edge that drops what is oldest between two stages, handled at most
// once, and at least once: what is missed is counted, and the newest comes.
//
// TestChaosGPU does it to pipelines that carry tensors in the memory of GPUs, which
// are emulated, or real ones with -chaos.driver cuda in a test binary that is built with
// the tag cuda (go test -c -tags cuda). A request may also fail because a tensor of
// a dead process was never completed; none may be read that is not as it was made,
// and a process that ends well has nothing left on its GPU.
//
// A kill counts when the host's books show, at the victim's death, that it
// had something: a delivery, a result, or room that it was filling; where
// deliveries go past the host, an open stream of them. The run
// goes on until the wanted number has been counted. All choices come from a seed, which is
// printed and can be given with -chaos.seed; what the machine makes of them
// still differs from run to run. The figures at the end are how long it takes
// from the death of a process, which its pidfd tells, until everything that it
// had is back, but for the pages of memory that nobody needs any more: the kernel is
// still freeing those.
//
// The flags are for the long run:
//
//	go test ./internal/chaos -v -timeout 30m -chaos.kills 1000 -chaos.direct 1000 -chaos.gpu 1000 -chaos.hosts 50
package chaos
