#!/bin/sh
# A browser for the test that looks at reports: says nothing where Chromium or Chrome is there; else installs Debian's
# where it may (root and apt-get), or says how. Ends with 1 where there is none in the end: that test is skipped.
set -eu

there() {
    for name in chromium chromium-browser google-chrome; do
        if command -v "$name" >/dev/null; then return 0; fi
    done
    return 1
}

there && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "a test looks at a page in a browser, here is none: installing the distribution's chromium"
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    apt-get update --quiet >"$log" 2>&1 || true
    apt-get install --quiet --yes --no-install-recommends chromium >>"$log" 2>&1 || tail -n 3 "$log"
    rm -f "$log"
fi
there && exit 0
cat >&2 <<END
no Chromium or Chrome on the PATH: the test that looks at reports is skipped. To have one:
  Debian   sudo apt install chromium
  Fedora   sudo dnf install chromium
END
exit 1
