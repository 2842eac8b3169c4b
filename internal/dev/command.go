package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

// Command is "samovar dev".
func Command(stdout io.Writer) *cobra.Command {
	var o Options
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole cluster on this machine, for trying",
		Long: `Run a whole cluster on this machine, one process a node, each with a pool in a directory of its own,
until it is interrupted. The directory is kept: the same command continues the same cluster.`,
		Example: `  samovar dev --nodes 3 --dir /tmp/tea
  samovar dev --nodes 2 --witness --dir /tmp/tea`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			binary, err := os.Executable()
			if err != nil {
				return err
			}
			o.Binary, o.Pools = binary, true
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return run(ctx, o, stdout)
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Nodes, "nodes", 3, "number of nodes with a pool")
	f.StringVar(&o.Dir, "dir", filepath.Join(os.TempDir(), "samovar-dev"), "directory of the cluster")
	f.BoolVar(&o.Witness, "witness", false, "add a node with a vote and no pool")
	f.DurationVar(&o.PingTimeout, "ping-timeout", 0, "silence after which a replica is given up (default 5s)")
	f.StringVar(&o.LogLevel, "log-level", "", "of the nodes: debug, info, warn or error")
	return cmd
}

func run(ctx context.Context, o Options, out io.Writer) (err error) {
	c, err := New(o)
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		err = errors.Join(err, c.Stop(end))
	}()
	start, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := c.Start(start); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	c.Describe(out)
	fmt.Fprintln(out, "\nThe cluster runs until Ctrl-C.")
	<-ctx.Done()
	fmt.Fprintln(out, "Ending all nodes.")
	return nil
}

// Describe prints where everything is.
func (c *Cluster) Describe(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tAPI\tNBD\tUNIX SOCKET\tLOG")
	for _, n := range c.Nodes {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", n.Name, n.Config.API, n.Config.NBD, n.Config.Socket, n.Log)
	}
	w.Flush() // errors of the terminal show there
	fmt.Fprintf(out, "\nIn another terminal:\n  export SAMOVAR_ENDPOINT=%s\n  samovar status\n  samovar volume create tea --size 1GiB --replicas 2\n  samovar volume attach tea\n",
		c.Nodes[0].Config.API)
}
