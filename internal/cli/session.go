package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"samovar/internal/api/client"
	"samovar/internal/fault"
)

// session is one run of a command: its streams and the flags that many commands share.
type session struct {
	streams  Streams
	version  string
	endpoint string
	timeout  time.Duration
	output   format
	watch    bool
}

// prints gives a command the flag -o.
func (s *session) prints(cmd *cobra.Command) *cobra.Command {
	s.output = formatTable
	cmd.Flags().VarP(&s.output, "output", "o", "table, json or yaml")
	return cmd
}

// lists gives a command the flags -o and -w.
func (s *session) lists(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVarP(&s.watch, "watch", "w", false, "show it again whenever it changes, until interrupted")
	return s.prints(cmd)
}

// connect makes the client.
func (s *session) connect() (*client.Client, error) {
	if s.timeout <= 0 {
		return nil, fault.New(fault.Invalid, "--timeout", "must be longer than zero, like 30s")
	}
	return client.New(strings.Split(s.endpoint, ","), client.Options{Timeout: s.timeout, Notice: func(_ string, err error) {
		fmt.Fprintf(s.streams.Err, "samovar: %s; trying on\n", printable(err.Error()))
	}})
}

// run gives a client to do.
func (s *session) run(do func(cmd *cobra.Command, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := s.connect()
		if err != nil {
			return err
		}
		defer c.Close()
		return do(cmd, c, args)
	}
}

// print shows a result.
func (s *session) print(value any, draw func(io.Writer)) error {
	return s.output.write(s.streams.Out, value, draw)
}

// shown fetches something and shows it, again and again if the flag -w is there.
func shown[T any](s *session, fetch func(ctx context.Context, c *client.Client, args []string) (T, error),
	draw func(io.Writer, T), h func(args []string) hints) func(*cobra.Command, []string) error {
	return s.run(func(cmd *cobra.Command, c *client.Client, args []string) error {
		render := func(ctx context.Context) ([]byte, error) {
			value, err := fetch(ctx, c, args)
			if err != nil {
				if h != nil {
					err = advise(err, h(args))
				}
				return nil, err
			}
			var b bytes.Buffer
			err = s.output.write(&b, value, func(w io.Writer) { draw(w, value) })
			return b.Bytes(), err
		}
		if s.watch {
			return s.keep(cmd.Context(), c, render)
		}
		text, err := render(cmd.Context())
		if err != nil {
			return err
		}
		_, err = s.streams.Out.Write(text)
		return err
	})
}

// keep shows what render gives whenever it is another than before, until ctx ends.
func (s *session) keep(ctx context.Context, c *client.Client, render func(context.Context) ([]byte, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	changed, watched := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		watched <- c.Watch(ctx, func() error {
			select {
			case changed <- struct{}{}:
			default: // one is waiting already
			}
			return nil
		})
	}()
	running := true
	defer func() {
		cancel()
		if running {
			<-watched
		}
	}()
	tick := time.NewTicker(s.streams.Refresh)
	defer tick.Stop()
	screen := screen{out: s.streams.Out, terminal: s.streams.OutTerminal, format: s.output}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-watched:
			running = false
			return err
		case <-changed:
		case <-tick.C:
		}
		text, err := render(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (!screen.used || ExitCode(err) != exitUnavailable):
			return err
		case err != nil:
			continue // the client told it; the cluster may come back
		}
		if err := screen.show(text); err != nil {
			return fault.Wrap(fault.IO, "print", err)
		}
	}
}

// screen shows a text in the place of the one before: on a terminal by drawing over it, elsewhere one after the
// other.
type screen struct {
	out      io.Writer
	terminal bool
	format   format
	used     bool
	last     []byte
}

func (s *screen) show(text []byte) error {
	if s.used && bytes.Equal(s.last, text) {
		return nil
	}
	var b bytes.Buffer
	switch {
	case s.format == formatYAML:
		b.WriteString("---\n")
		b.Write(text)
	case s.format == formatJSON:
		b.Write(text)
	case s.terminal:
		// Home, every line with the rest of it erased, then the rest of the screen: no flicker.
		if !s.used {
			b.WriteString("\x1b[2J")
		}
		b.WriteString("\x1b[H")
		b.Write(bytes.ReplaceAll(text, []byte("\n"), []byte("\x1b[K\n")))
		b.WriteString("\x1b[J")
	default:
		if s.used {
			b.WriteString("\n")
		}
		b.Write(text)
	}
	s.used, s.last = true, text
	_, err := s.out.Write(b.Bytes())
	return err
}
