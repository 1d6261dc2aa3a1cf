package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

// module is cut from the Go import path of a generated file to find its place
// under the root.
const module = "github.com/omnibus-runtime/omnibus"

func main() {
	root := flag.String("root", ".", "the repository; .proto files are named relative to it")
	check := flag.Bool("check", false, "write nothing; fail when a generated file is out of date")
	flag.Parse()
	if err := run(context.Background(), *root, *check, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, root string, check bool, names []string) error {
	if len(names) == 0 {
		return errors.New("no .proto file named")
	}
	request, err := compile(ctx, root, names)
	if err != nil {
		return fmt.Errorf("compile: %w", err)
	}
	response, err := generate(ctx, request)
	if err != nil {
		return fmt.Errorf("protoc-gen-go: %w", err)
	}
	if check {
		return compare(root, response.GetFile())
	}
	return write(root, response.GetFile())
}

// compile returns the named files and everything they import, imports first,
// with the comments that end up in the generated code.
func compile(ctx context.Context, root string, names []string) (*pluginpb.CodeGeneratorRequest, error) {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{root}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(ctx, names...)
	if err != nil {
		return nil, err
	}
	var all []*descriptorpb.FileDescriptorProto
	seen := map[string]bool{}
	var visit func(protoreflect.FileDescriptor)
	visit = func(file protoreflect.FileDescriptor) {
		if seen[file.Path()] {
			return
		}
		seen[file.Path()] = true
		for i := range file.Imports().Len() {
			visit(file.Imports().Get(i).FileDescriptor)
		}
		all = append(all, protoutil.ProtoFromFileDescriptor(file))
	}
	for _, file := range files {
		visit(file)
	}
	return &pluginpb.CodeGeneratorRequest{
		FileToGenerate: names,
		Parameter:      proto.String("module=" + module),
		ProtoFile:      all,
	}, nil
}

// generate runs the plugin of tools/go.mod on the request.
func generate(ctx context.Context, request *pluginpb.CodeGeneratorRequest) (*pluginpb.CodeGeneratorResponse, error) {
	in, err := proto.Marshal(request)
	if err != nil {
		return nil, err
	}
	plugin := exec.CommandContext(ctx, "go", "tool", "protoc-gen-go")
	plugin.Stdin = bytes.NewReader(in)
	plugin.Stderr = os.Stderr
	out, err := plugin.Output()
	if err != nil {
		return nil, err
	}
	response := new(pluginpb.CodeGeneratorResponse)
	if err := proto.Unmarshal(out, response); err != nil {
		return nil, err
	}
	if response.Error != nil {
		return nil, errors.New(response.GetError())
	}
	return response, nil
}

func write(root string, files []*pluginpb.CodeGeneratorResponse_File) error {
	for _, file := range files {
		path := filepath.Join(root, filepath.FromSlash(file.GetName()))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(file.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func compare(root string, files []*pluginpb.CodeGeneratorResponse_File) error {
	var stale []error
	for _, file := range files {
		have, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file.GetName())))
		switch {
		case err != nil:
			stale = append(stale, err)
		case string(have) != file.GetContent():
			stale = append(stale, fmt.Errorf("%s is out of date: run `make gen` and commit the result", file.GetName()))
		}
	}
	return errors.Join(stale...)
}
