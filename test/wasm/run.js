// node run.js FILE: runs check() of main.c
const erfc = x => {  // Abramowitz and Stegun 7.1.26 is enough here
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const y = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))) * Math.exp(-x * x);
  return x < 0 ? 2 - y : y;
};
const { exp, log, pow, tanh } = Math;
WebAssembly.instantiate(require("fs").readFileSync(process.argv[2]), { env: { exp, log, pow, tanh, erfc } })
  .then(({ instance }) => {
    const line = instance.exports.check();
    if (line) console.log(`main.c:${line} went wrong`);
    process.exit(line ? 1 : 0);
  });
