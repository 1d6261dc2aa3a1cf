package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// The service: a call with a payload and one back, and streams of them.
const (
	grpcService    = "bench.Peer"
	grpcCall       = "/" + grpcService + "/Call"
	grpcStream     = "/" + grpcService + "/Stream"
	maxGRPCMessage = 4 * mib // of a message
)

type grpcPayload = wrapperspb.BytesValue

// A grpcSide calls a server in another process through a Unix socket; relayed, through a
// server in a third process.
type grpcSide struct {
	*cluster
	conn   *grpc.ClientConn
	stream grpc.ClientStream // of all messages; nil: each message is a call
	hangUp context.CancelFunc
	spec   peerSpec
	source *grpcPayload
}

func openGRPCSide(ctx context.Context, opts Options, spec peerSpec) (side, error) {
	c, err := newCluster(opts)
	if err != nil {
		return nil, err
	}
	s := &grpcSide{cluster: c, spec: spec, source: wrapperspb.Bytes(touched(spec.Pattern.Size))}
	return warmedUp(ctx, s, c, spec, s.open(ctx))
}

func (s *grpcSide) open(ctx context.Context) error {
	spec := s.spec
	spec.Socket = s.path("grpc")
	if _, err := s.start(ctx, spec); err != nil {
		return err
	}
	if spec.Relayed {
		spec.Carrier, spec.Target, spec.Socket = byGRPCRelay, spec.Socket, s.path("relay")
		if _, err := s.start(ctx, spec); err != nil {
			return err
		}
	}
	var err error
	if s.conn, err = dialGRPC(spec.Socket); err != nil || spec.Flight > 0 {
		return err
	}
	ctx, s.hangUp = context.WithCancel(context.WithoutCancel(ctx))
	s.stream, err = s.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, grpcStream)
	return err
}

func dialGRPC(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxGRPCMessage)))
}

func (s *grpcSide) run(ctx context.Context, n int) (time.Duration, error) {
	return s.timed(ctx, func(ctx context.Context) error {
		if s.spec.Flight > 0 {
			return s.spec.requests(ctx, n, s.call)
		}
		for range n {
			if err := s.exchange(); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *grpcSide) call(ctx context.Context) error {
	var answer grpcPayload
	if err := s.conn.Invoke(ctx, grpcCall, s.source, &answer); err != nil {
		return err
	}
	return readAll(answer.GetValue())
}

func (s *grpcSide) exchange() error {
	for range s.spec.Pattern.Every {
		if err := s.stream.SendMsg(s.source); err != nil {
			return err
		}
	}
	var answer grpcPayload
	if err := s.stream.RecvMsg(&answer); err != nil {
		return err
	}
	return readAll(answer.GetValue())
}

func (s *grpcSide) close(ctx context.Context) error {
	var errs []error
	if s.hangUp != nil {
		s.hangUp()
	}
	if s.conn != nil {
		errs = append(errs, s.conn.Close())
	}
	return errors.Join(append(errs, s.cluster.close(ctx))...)
}

// A grpcServer answers calls itself, or relays them to another server.
type grpcServer struct {
	spec   peerSpec
	answer *grpcPayload
	target *grpc.ClientConn // nil: none
}

func serveGRPC(_ context.Context, spec peerSpec) error {
	s := &grpcServer{spec: spec, answer: wrapperspb.Bytes(touched(spec.Pattern.Answer))}
	if spec.Carrier == byGRPCRelay {
		var err error
		if s.target, err = dialGRPC(spec.Target); err != nil {
			return err
		}
	}
	ln, err := net.Listen("unix", spec.Socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxGRPCMessage))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: grpcService,
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Call", Handler: s.serveCall}},
		Streams:     []grpc.StreamDesc{{StreamName: "Stream", Handler: s.serveStream, ServerStreams: true, ClientStreams: true}},
	}, s)
	if err := ready(""); err != nil {
		return err
	}
	return server.Serve(ln)
}

func (s *grpcServer) serveCall(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) { //nolint:revive // gRPC's order
	var payload, answer grpcPayload
	if err := decode(&payload); err != nil {
		return nil, err
	}
	if s.target != nil {
		err := s.target.Invoke(ctx, grpcCall, &payload, &answer)
		return &answer, err
	}
	return s.answer, readAll(payload.GetValue())
}

func (s *grpcServer) serveStream(_ any, stream grpc.ServerStream) error {
	for {
		for range s.spec.Pattern.Every {
			var payload grpcPayload
			if err := stream.RecvMsg(&payload); err != nil {
				return err
			}
			if err := readAll(payload.GetValue()); err != nil {
				return fmt.Errorf("stream: %w", err)
			}
		}
		if err := stream.SendMsg(s.answer); err != nil {
			return err
		}
	}
}
