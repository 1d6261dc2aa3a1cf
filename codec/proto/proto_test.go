package proto_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/runtime/protoiface"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/codectest"
	codecproto "github.com/omnibus-runtime/omnibus/codec/proto"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

func sample(t testing.TB) *structpb.Struct {
	t.Helper()
	m, err := structpb.NewStruct(map[string]any{"text": "é", "list": []any{1.5, nil, true}, "empty": map[string]any{}})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestContract checks the promises of package codec.
func TestContract(t *testing.T) {
	s, value := codecproto.Serializer{}, sample(t)
	n, ok := s.Size(value)
	if !ok || n == 0 {
		t.Fatalf("Size = %d, %v", n, ok)
	}
	readsBack := func(what string, payload []byte) {
		t.Helper()
		got, err := codec.Decode[*structpb.Struct](s, payload)
		if err != nil || !proto.Equal(got, value) {
			t.Errorf("%s: got %v, %v", what, got, err)
		}
	}
	dst := bytes.Repeat([]byte{0xee}, n)
	if err := s.EncodeInto(dst, value); err != nil {
		t.Fatal(err)
	}
	readsBack("EncodeInto", dst)

	room := append([]byte("before"), make([]byte, n)...)
	got, err := s.Append(room[:6], value)
	if err != nil || &got[0] != &room[0] || string(got[:6]) != "before" {
		t.Fatalf("Append did not stay in place: %v", err)
	}
	readsBack("Append", got[6:])

	for _, wrong := range []int{0, n - 1, n + 1} {
		var size *codec.SizeError
		beyond := make([]byte, n+2)
		if err := s.EncodeInto(beyond[:wrong], value); !errors.As(err, &size) || size.Got != wrong || size.Want != n {
			t.Errorf("EncodeInto %d bytes: got %v, want a SizeError", wrong, err)
		}
		if !bytes.Equal(beyond[wrong:], make([]byte, n+2-wrong)) {
			t.Errorf("EncodeInto %d bytes wrote behind them", wrong)
		}
	}
	for _, bad := range []any{nil, 1, "text", (*structpb.Struct)(nil), struct{}{}, &[]byte{}} {
		if n, ok := s.Size(bad); ok {
			t.Errorf("Size of a %T = %d, true", bad, n)
		}
		for what, err := range map[string]error{
			"Append":     func() error { _, err := s.Append(nil, bad); return err }(),
			"EncodeInto": s.EncodeInto(nil, bad),
			"Decode":     s.Decode(dst, bad),
		} {
			var typed *codec.TypeError
			if !errors.As(err, &typed) || typed.Serializer != "proto" || !strings.Contains(typed.Want, "proto.Message") {
				t.Errorf("%s of a %T: got %v, want a TypeError", what, bad, err)
			}
		}
	}
}

func TestDecodeTargets(t *testing.T) {
	s, want := codecproto.Serializer{}, wrapperspb.Bytes([]byte("data"))
	payload, err := s.Append(nil, want)
	if err != nil {
		t.Fatal(err)
	}
	reused := wrapperspb.Bytes(bytes.Repeat([]byte("x"), 99))
	if err := s.Decode(payload, reused); err != nil || !proto.Equal(reused, want) {
		t.Errorf("into a message: %v, %v", reused, err)
	}
	old := wrapperspb.Bytes([]byte("old"))
	pointer := old
	if err := s.Decode(payload, &pointer); err != nil || !proto.Equal(pointer, want) {
		t.Errorf("into a pointer: %v, %v", pointer, err)
	}
	if string(old.Value) != "old" {
		t.Errorf("a message that the program may still hold was reused: %q", old.Value)
	}
	dynamic := dynamicpb.NewMessage(want.ProtoReflect().Descriptor())
	if err := s.Decode(payload, dynamic); err != nil || !proto.Equal(dynamic, want) {
		t.Errorf("into a dynamic message: %v, %v", dynamic, err)
	}
	if err := s.Decode(payload, &dynamic); !errors.Is(err, codec.ErrType) {
		t.Errorf("into a pointer of no known type: got %v, want ErrType", err)
	}
	for i := range payload {
		payload[i] = 0
	}
	if string(pointer.Value) != "data" {
		t.Errorf("the result changed with the payload: %q", pointer.Value)
	}
}

// nested returns a descriptor within a descriptor, depth of them.
func nested(depth int) []byte {
	var b []byte
	for range depth - 1 {
		b = append(protowire.AppendVarint([]byte{3<<3 | 2}, uint64(len(b))), b...)
	}
	return b
}

func TestDecodeRefuses(t *testing.T) {
	tests := []struct {
		name    string
		src     []byte
		into    proto.Message
		want    error
		because string // part of the library's error; empty: any
	}{
		{"cut short", []byte{0x0a, 5, 'a'}, new(wrapperspb.BytesValue), codec.ErrMalformed, ""},
		{"length of all ones", append([]byte{0x0a}, bytes.Repeat([]byte{0xff}, 10)...), new(wrapperspb.BytesValue), codec.ErrMalformed, ""},
		{"field zero", []byte{0x02, 0}, new(wrapperspb.BytesValue), codec.ErrMalformed, ""},
		{"text not UTF-8", []byte{0x0a, 1, 0xff}, new(wrapperspb.StringValue), codec.ErrMalformed, "UTF-8"},
		{"at the depth", nested(codecproto.MaxDepth), new(descriptorpb.DescriptorProto), nil, ""},
		{"too deep", nested(codecproto.MaxDepth + 1), new(descriptorpb.DescriptorProto), codec.ErrLimit, "recursion depth"},
		{"far too deep", nested(5000), new(descriptorpb.DescriptorProto), codec.ErrLimit, "recursion depth"},
		{"too deep for a dynamic type", nested(codecproto.MaxDepth + 1), dynamicpb.NewMessage(new(descriptorpb.DescriptorProto).ProtoReflect().Descriptor()), codec.ErrLimit, "recursion depth"},
		{"too large", make([]byte, codecproto.MaxBytes+1), new(wrapperspb.BytesValue), codec.ErrLimit, ""},
		{"required field missing", nil, new(descriptorpb.UninterpretedOption_NamePart), codec.ErrMismatch, "required"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := codecproto.Serializer{}.Decode(tt.src, tt.into)
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if tt.because != "" && (!errors.Is(err, proto.Error) || !strings.Contains(err.Error(), tt.because)) {
				t.Errorf("%v does not say %q", err, tt.because)
			}
		})
	}
}

func TestEncodeRefuses(t *testing.T) {
	tests := []struct {
		name  string
		value proto.Message
		want  error
		sized bool // refused by its number of bytes alone
	}{
		{"too large", wrapperspb.Bytes(make([]byte, codecproto.MaxBytes)), codec.ErrLimit, false},
		{"text not UTF-8", wrapperspb.String("\xff"), codec.ErrType, true},
		{"required field missing", new(descriptorpb.UninterpretedOption_NamePart), codec.ErrType, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := (codecproto.Serializer{}).Append(nil, tt.value); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if _, ok := (codecproto.Serializer{}).Size(tt.value); ok != tt.sized {
				t.Errorf("Size says %v", ok)
			}
		})
	}
}

// TestStore sends a message through a store, encoded in place.
func TestStore(t *testing.T) {
	store, err := shmstore.Create(shmstore.Options{ArenaBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	want := sample(t)
	size, _ := codecproto.Serializer{}.Size(want)
	room, err := store.Reserve(size, codecproto.Serializer{}.ID(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := (codecproto.Serializer{}).EncodeInto(room.Bytes(), want); err != nil {
		t.Fatal(err)
	}
	handle, err := room.Commit(size, 1)
	if err != nil {
		t.Fatal(err)
	}
	if codec.ID(handle.Codec) != codec.IDProto {
		t.Errorf("codec %d in the handle", handle.Codec)
	}
	lease, err := store.Local().Take(handle)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	got, err := codec.Decode[*structpb.Struct](codecproto.Serializer{}, lease.Bytes())
	if err != nil || !proto.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
}

// watched is a message that records the bytes it is decoded from.
type watched struct {
	protoreflect.Message
	decode func(src []byte)
}

func (w watched) ProtoReflect() protoreflect.Message   { return w }
func (w watched) Interface() protoreflect.ProtoMessage { return w }

func (w watched) ProtoMethods() *protoiface.Methods {
	return &protoiface.Methods{Unmarshal: func(in protoiface.UnmarshalInput) (protoiface.UnmarshalOutput, error) {
		w.decode(in.Buf)
		return protoiface.UnmarshalOutput{Flags: protoiface.UnmarshalInitialized}, nil
	}}
}

// TestPrivateCopy: a message is decoded from a private copy, which a writer of the payload cannot change
// between the library's checks and the use.
func TestPrivateCopy(t *testing.T) {
	payload := []byte{0x0a, 1, 'x'}
	seen := false
	m := watched{new(wrapperspb.BytesValue).ProtoReflect(), func(src []byte) {
		seen = true
		if !bytes.Equal(src, payload) || &src[0] == &payload[0] {
			t.Errorf("decoded from %p %x, the payload is %p %x", src, src, payload, payload)
		}
	}}
	if err := (codecproto.Serializer{}).Decode(payload, m); err != nil || !seen {
		t.Error(seen, err)
	}
}

// FuzzDecode decodes any bytes without a panic: to an error with its
// kind, or to a message that is encoded and decoded to the same again.
func FuzzDecode(f *testing.F) {
	s := codecproto.Serializer{}
	for _, m := range []proto.Message{sample(f), wrapperspb.String("text"), protodesc()} {
		payload, err := s.Append(nil, m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(payload)
	}
	f.Add(nested(9))
	f.Fuzz(func(t *testing.T, src []byte) {
		for _, m := range []proto.Message{new(structpb.Struct), new(descriptorpb.FileDescriptorProto), new(wrapperspb.DoubleValue)} {
			private := bytes.Clone(src)
			err := s.Decode(private, m)
			if !bytes.Equal(private, src) {
				t.Fatal("decoding wrote to the payload")
			}
			if err != nil {
				codectest.CheckError(t, err, nil)
				continue
			}
			again, err := s.Append(nil, m)
			if err != nil {
				t.Fatalf("the decoded message cannot be encoded: %v", err)
			}
			back := m.ProtoReflect().New().Interface()
			if err := s.Decode(again, back); err != nil || !proto.Equal(m, back) {
				t.Fatalf("%v reads back as %v, %v", m, back, err)
			}
		}
	})
}

// protodesc is a message with many kinds of fields.
func protodesc() proto.Message {
	return &descriptorpb.FileDescriptorProto{
		Name: new("a.proto"), Dependency: []string{"b.proto"}, PublicDependency: []int32{0},
		MessageType: []*descriptorpb.DescriptorProto{{
			Name:  new("M"),
			Field: []*descriptorpb.FieldDescriptorProto{{Name: new("f"), Number: new(int32(1)), Type: descriptorpb.FieldDescriptorProto_TYPE_GROUP.Enum()}},
		}},
		Options: &descriptorpb.FileOptions{UninterpretedOption: []*descriptorpb.UninterpretedOption{{
			Name: []*descriptorpb.UninterpretedOption_NamePart{{NamePart: new("x"), IsExtension: new(true)}}, DoubleValue: new(1.5),
		}}},
	}
}
