package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"samovar/internal/api/client"
	"samovar/internal/fault"
	"samovar/internal/resource"
)

// mostDifferences is how many differences a result holds at most.
const mostDifferences = 100

func volumeVerify(s *session) *cobra.Command {
	return &cobra.Command{
		Use: "verify VOLUME", Short: "Compare all copies of a volume", Args: takes("VOLUME"), ValidArgsFunction: s.completeVolumes(),
		Long: `Compare all copies of a volume, byte for byte by checksums. It changes nothing and can be interrupted. It says
where copies differ, and ends with exit code 1 then.`,
		Example: "  samovar volume verify tea\n  samovar volume verify tea -o json",
		RunE: s.run(func(cmd *cobra.Command, c *client.Client, args []string) error {
			name := args[0]
			var progress func(resource.Progress)
			if s.streams.ErrTerminal {
				progress = func(p resource.Progress) {
					fmt.Fprintf(s.streams.Err, "\rvolume %s: comparing, %s\x1b[K", name, printable(progressText(p)))
				}
			}
			v, err := c.Verify(cmd.Context(), name, progress)
			if progress != nil {
				fmt.Fprint(s.streams.Err, "\r\x1b[K")
			}
			if err != nil {
				return advise(err, volumeHints())
			}
			if err := s.print(v, func(w io.Writer) { drawVerified(w, name, v) }); err != nil {
				return err
			}
			if !v.Equal {
				return hinted{fault.New(fault.Corrupt, "volume "+name, "its copies differ"),
					"nothing was changed; docs/errors.md says what to do when copies differ"}
			}
			return nil
		}),
	}
}

func drawVerified(w io.Writer, name string, v resource.Verified) {
	if v.Equal {
		fmt.Fprintf(w, "volume %s: %d copies are equal, %s compared\n", name, v.Copies, formatSize(v.Bytes))
		return
	}
	more := ""
	if len(v.Differences) >= mostDifferences {
		more = " or more"
	}
	fmt.Fprintf(w, "volume %s: %d copies differ in %d%s places, %s compared\n", name, v.Copies, len(v.Differences), more, formatSize(v.Bytes))
	t := newTable(">OFFSET", ">LENGTH", "CHECKSUMS")
	for _, d := range v.Differences {
		t.add(fmt.Sprint(d.Offset), fmt.Sprint(d.Length), sums(d.Sums))
	}
	t.write(w)
}

// sums prints what each pool has, pools that agree together: "ssd1,ssd3=aa  ssd2=bb".
func sums(of map[string]string) string {
	pools := map[string][]string{}
	var order []string
	for _, pool := range slices.Sorted(maps.Keys(of)) {
		sum := of[pool]
		if pools[sum] == nil {
			order = append(order, sum)
		}
		pools[sum] = append(pools[sum], pool)
	}
	for i, sum := range order {
		order[i] = strings.Join(pools[sum], ",") + "=" + sum
	}
	return strings.Join(order, "  ")
}
