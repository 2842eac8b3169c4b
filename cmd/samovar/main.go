// Command samovar is the daemon, the command line and everything else of the product, in one binary.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"samovar/internal/cli"
	"samovar/internal/daemon"
	"samovar/internal/demo"
	"samovar/internal/dev"
)

// version is set by the linker (Makefile).
var version = ""

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string) int {
	v := versionOf(version)
	streams := cli.Standard()
	root := cli.New(streams, cli.Options{Version: v, Extra: []*cobra.Command{
		daemon.Command(v, streams.Err), dev.Command(streams.Out), demo.Command(streams.Out),
	}})
	return cli.Execute(ctx, root, args)
}

// versionOf names a build that the Makefile did not make.
func versionOf(linked string) string {
	if linked != "" {
		return linked
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "0.1.0-dev"
}
