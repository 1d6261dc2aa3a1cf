// Package speech has the stages of a speech codec on a bus, for the programs
// that run it in different ways.
//
//	samples -> thinker: coefficients -> talker: coded -> vocoder: samples
//
// The inputs of a request are tensors of int16, [sample][channel], with
// [AttrRate] and [AttrQuality]; so are its results, without the attributes. Chunks
// flow while the input is still being sent. Invalid input fails its request. The
// stages keep the state of a request in its tasks only: any number of requests may
// be in flight, and the death of a process loses only its tasks.
package speech
