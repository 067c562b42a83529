#!/bin/sh
# Java for Spark: says nothing where 17 or newer is there; else installs it where it may (root and apt-get),
# or says how. Ends with 1 where there is none in the end: penstock does without, Spark doesn't.
set -eu

there() {
    if [ -n "${JAVA_HOME:-}" ]; then java=$JAVA_HOME/bin/java; else java=java; fi
    found=$("$java" -version 2>&1 | sed -nE 's/.* version "(1\.)?([0-9]+).*/\2/p' | head -n 1)
    [ "${found:-0}" -ge 17 ]
}

install() {
    echo "Spark needs Java 17 or newer, here is ${found:-none}: installing the distribution's"
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    apt-get update --quiet >"$log" 2>&1 || true
    # 17 runs every Spark from 3.5 on; the default may be 25, on which those before 4.2 don't run.
    for package in openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless; do
        if apt-get install --quiet --yes --no-install-recommends "$package" >>"$log" 2>&1; then
            echo "installed $package"
            break
        fi
    done
    there || tail -n 3 "$log"
    rm -f "$log"
}

there && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then install; fi
there && exit 0
cat >&2 <<END
no Java 17 or newer (${JAVA_HOME:-the PATH} has ${found:-none}): all but Spark works, its tests are skipped. To have it:
  Debian, Ubuntu   sudo apt install openjdk-17-jre-headless    (or default-jre-headless)
  Fedora           sudo dnf install java-21-openjdk-headless
  macOS            brew install openjdk@17 && export JAVA_HOME="\$(brew --prefix openjdk@17)"
END
exit 1
