// Package lane carries tensors from process to process in memory of a GPU.
//
// Processes find each other's memory through a [Directory], which somebody who has
// introduced them implements: package bus, over the connection of each process to
// its host.
package lane
