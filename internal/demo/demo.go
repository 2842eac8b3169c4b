// Package demo tells the main story on one machine, with real processes: a volume with two copies is written, the
// node that holds its engine is killed under load, the volume goes on elsewhere with every acknowledged byte, and the
// node comes back and receives only what it missed. It is a face: it starts nodes and asks the API.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"samovar/internal/api/client"
	"samovar/internal/dev"
	"samovar/internal/resource"
)

const (
	volumeSize  = 512 << 20
	fioSize     = 128 << 20 // written by fio, or by us where there is none
	loadFrom    = 256 << 20 // written under load
	loadSize    = 128 << 20
	pingTimeout = 2 * time.Second
)

// Command is "samovar demo".
func Command(out io.Writer) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show on this machine what happens when a node dies under load",
		Example: `  samovar demo
  samovar demo --dir /dev/shm/demo`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), dir, out) },
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory for the nodes (default: a temporary one); it is removed afterwards")
	return cmd
}

// story is one telling.
type story struct {
	out     io.Writer
	cluster *dev.Cluster
	api     *client.Client
	fio     string // path; empty: there is none
	began   time.Time
	rows    [][2]string
}

func run(ctx context.Context, dir string, out io.Writer) (err error) {
	root, err := os.MkdirTemp(dir, "samovar-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(root)) }()
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	c, err := dev.New(dev.Options{Binary: binary, Dir: root, Nodes: 3, Pools: true, PingTimeout: pingTimeout})
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		err = errors.Join(err, c.Stop(end))
	}()
	s := &story{out: out, cluster: c, began: time.Now()}
	if path, err := exec.LookPath("fio"); err == nil {
		s.fio = path
	}
	if s.api, err = c.Client(); err != nil {
		return err
	}
	defer s.api.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if err := s.tell(ctx); err != nil {
		return err
	}
	s.table()
	return nil
}

func (s *story) say(format string, args ...any) {
	fmt.Fprintf(s.out, "%5.1f s  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

func (s *story) row(what, result string, args ...any) {
	s.rows = append(s.rows, [2]string{what, fmt.Sprintf(result, args...)})
}

func (s *story) tell(ctx context.Context) error {
	s.say("starting three nodes on this machine, each with a pool")
	if err := s.cluster.Start(ctx); err != nil {
		return err
	}
	v := resource.NewVolume{Name: "tea", Size: volumeSize, Copies: 2, Pools: []string{"pool-n1", "pool-n2"}}
	if _, err := s.api.CreateVolume(ctx, v); err != nil {
		return err
	}
	s.say("volume tea: 512 MiB, copies on n1 and n2")
	if _, err := s.api.Attach(ctx, "tea", resource.Attach{Node: "n1"}); err != nil {
		return err
	}
	first := newWriter([]string{s.nbd(0)}, "tea", 0, fioSize)
	if err := s.write(ctx, first); err != nil {
		return err
	}
	load := newWriter([]string{s.nbd(0), s.nbd(1), s.nbd(2)}, "tea", loadFrom, loadSize)
	if err := s.kill(ctx, load); err != nil {
		return err
	}
	if err := s.check(ctx, first, load); err != nil {
		return err
	}
	return s.comeBack(ctx)
}

func (s *story) nbd(i int) string { return s.cluster.Nodes[i].Config.NBD }

// write fills the first part with verification data.
func (s *story) write(ctx context.Context, own *writer) error {
	if s.fio != "" {
		s.say("fio writes 128 MiB with verification data through NBD on n1")
		return s.runFio(ctx, 0, "--do_verify=0", "--end_fsync=1")
	}
	s.say("there is no fio here: our own client writes verification data through NBD on n1")
	short, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	own.run(short)
	return nil
}

func (s *story) runFio(ctx context.Context, node int, args ...string) error {
	base := []string{
		"--name=tea", "--ioengine=nbd", "--uri=nbd://" + s.nbd(node) + "/tea", "--rw=randwrite", "--bs=4k",
		"--iodepth=32", fmt.Sprintf("--size=%d", fioSize), "--verify=crc32c", "--randseed=7", "--minimal",
	}
	cmd := exec.CommandContext(ctx, s.fio, append(base, args...)...)
	cmd.Dir = filepath.Dir(s.cluster.Nodes[0].Dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("fio: %w\n%s", err, out)
	}
	return nil
}

// kill loads the volume, kills the node of the engine, and waits until I/O goes on.
func (s *story) kill(ctx context.Context, load *writer) error {
	loading, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		load.run(loading)
	}()
	defer func() {
		stop()
		<-ended
	}()
	if err := progress(ctx, load, 4000); err != nil {
		return err
	}
	s.say("kill -9 of n1, which holds the engine and a copy, while our client writes with 16 requests in flight")
	if err := s.cluster.Nodes[0].Kill(); err != nil {
		return err
	}
	before, _, _ := load.state()
	if err := progress(ctx, load, 4000); err != nil {
		return err
	}
	after, longest, _ := load.state()
	s.say("I/O goes on through %s", s.cluster.Nodes[load.node].Name)
	s.row("writes acknowledged before the kill", "%d", before)
	s.row("I/O stood still for", "%.1f s (ping time-out %v; the default is 5 s)", longest.Seconds(), pingTimeout)
	s.row("writes acknowledged on "+s.cluster.Nodes[load.node].Name+" with one copy left", "%d", after-before)
	return nil
}

// progress waits until a writer has done more writes.
func progress(ctx context.Context, w *writer, more uint64) error {
	start, _, _ := w.state()
	for {
		if n, _, _ := w.state(); n >= start+more {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("I/O did not go on in time")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// check reads back everything that was acknowledged.
func (s *story) check(ctx context.Context, first, load *writer) error {
	n, err := load.verify(ctx, s.nbd(load.node))
	if err != nil {
		return err
	}
	s.say("every acknowledged block of the load reads back: %d blocks", n)
	s.row("blocks written under load, read back and right", "%d", n)
	if s.fio == "" {
		n, err := first.verify(ctx, s.nbd(load.node))
		if err != nil {
			return err
		}
		s.row("blocks written before, read back and right", "%d", n)
		return nil
	}
	if err := s.runFio(ctx, load.node, "--verify_only"); err != nil {
		return err
	}
	s.say("fio verifies its 128 MiB on the new node")
	s.row("fio --verify_only of what it wrote before", "right, 128 MiB")
	return nil
}

// comeBack starts the killed node again and waits until the volume is redundant.
func (s *story) comeBack(ctx context.Context) error {
	s.say("n1 starts again")
	start := time.Now()
	if err := s.cluster.StartNode(0); err != nil {
		return err
	}
	var v resource.Volume
	err := s.cluster.Await(ctx, "the volume has both copies again", func(ctx context.Context, api *client.Client) (err error) {
		v, err = api.Volume(ctx, "tea")
		if err == nil && !v.Redundant {
			err = errors.New("it is not redundant yet")
		}
		return err
	})
	if err != nil {
		return err
	}
	s.say("n1 has what it missed: both copies are in sync")
	s.row("from the start of n1 to two copies in sync", "%.1f s", time.Since(start).Seconds())
	s.row("copied over the wire to n1", "%d MiB of a volume of %d MiB", v.Copied>>20, v.Size>>20)
	result, err := s.api.Verify(ctx, "tea", nil)
	if err != nil {
		return err
	}
	if !result.Equal {
		return fmt.Errorf("the copies differ: %+v", result.Differences)
	}
	s.say("both copies were compared, %d MiB each: equal", result.Bytes>>20)
	s.row("comparison of both copies", "equal, %d MiB each", result.Bytes>>20)
	return nil
}

func (s *story) table() {
	fmt.Fprintln(s.out)
	w := tabwriter.NewWriter(s.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "WHAT\tRESULT")
	for _, r := range s.rows {
		fmt.Fprintf(w, "%s\t%s\n", r[0], r[1])
	}
	w.Flush() // errors of the terminal show there
	fmt.Fprintf(s.out, "\nDone in %.0f s. Everything that was started has ended.\n", time.Since(s.began).Seconds())
}
