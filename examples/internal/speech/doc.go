// Package speech has the stages of a speech codec on a bus, for the programs
// that run it in different ways.
//
//	samples -> thinker: coefficients -> talker: coded -> vocoder: samples
//
// The inputs of a request are tensors of int16, [sample][channel], with
// [AttrRate] and [AttrQuality]; so are its results, without the attributes. Chunks
// flow while the input is still coming. Input that makes no sense fails its
// request. The stages keep what they know of a request in its tasks, and nothing
// else: any number of requests may be under way, and a process that dies takes
// only its tasks with it.
package speech
