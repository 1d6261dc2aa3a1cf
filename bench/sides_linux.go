package bench

import (
	"context"
	"fmt"
	"io"
)

// openers open the sides of carriers: the part in this process, and all other processes.
var openers = map[carrierName]func(context.Context, Options, peerSpec) (side, error){
	byBus:        openBusSide,
	bySockets:    openSocketsSide,
	byGRPC:       openGRPCSide,
	byNATS:       openNATSSide,
	byPythonPair: openPythonPair,
	byZMQ:        openZMQSide,
	byQueue:      openQueueSide,
	byRing:       openValueSide,
	bySegment:    openValueSide,
	byVLLMOmni:   openValueSide,
	byLocalBus:   openLocalBus,
	byChannels:   openLocalChannels,
	byActors:     openLocalActors,
}

// servers are the main functions of the other processes, except byNode, which has a connection to close.
var servers = map[carrierName]func(context.Context, peerSpec) error{
	byBusHost:     serveHost,
	bySockets:     serveSockets,
	bySocketRelay: serveSocketRelay,
	byGRPC:        serveGRPC,
	byGRPCRelay:   serveGRPC,
	byNATS:        serveNATS,
	byNATSServer:  serveNATSServer,
	byNothing:     computeForever,
	byGPU:         serveGPU,
	byGPUHolder:   serveGPUHolder,
}

func openSide(ctx context.Context, opts Options, spec peerSpec) (side, error) {
	open, ok := openers[spec.Carrier]
	if !ok {
		return nil, fmt.Errorf("%w: no carrier %q", ErrOptions, spec.Carrier)
	}
	return open(ctx, opts, spec)
}

// runPeer is the main function of another process. It runs until standard input ends.
func runPeer(ctx context.Context, spec peerSpec, stdin io.Reader) error {
	if spec.Carrier == byNode {
		return serveNode(ctx, spec, stdin)
	}
	serve, ok := servers[spec.Carrier]
	if !ok {
		return fmt.Errorf("%w: no process %q", ErrOptions, spec.Carrier)
	}
	return untilHungUp(stdin, func() error { return serve(ctx, spec) })
}
