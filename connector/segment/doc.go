// Package segment hands values over as vLLM-Omni's SharedMemoryConnector does on one
// host, so that either side of an edge may be it: a value is a POSIX shared memory
// segment, a file in /dev/shm.
package segment
